"""Use cases of organizations, projects, keys and callers."""
