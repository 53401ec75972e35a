"""Operator commands: one file a noun, over the same services as the API."""
