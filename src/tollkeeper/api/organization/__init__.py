"""Handles the administration endpoints of an organization: policies, keys, projects, costs."""
