"""Resolving a hold once: settled or released."""
