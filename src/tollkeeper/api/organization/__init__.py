"""Handlers of organization administration: policies, keys, projects, costs."""
