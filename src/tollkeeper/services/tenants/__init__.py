"""Contains the use cases of organizations, projects, keys and client authentication."""
