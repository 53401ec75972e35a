"""Use cases of organizations, projects, keys and the authentication of callers."""
