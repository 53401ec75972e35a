"""Operator commands: one file per noun. They use the same services as the API."""
