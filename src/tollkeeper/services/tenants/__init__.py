"""Use cases of organizations, projects, keys and authentication."""
