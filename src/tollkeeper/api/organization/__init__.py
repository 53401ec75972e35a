"""Handles organization administration: policies, keys, projects, costs."""
