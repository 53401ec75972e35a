"""Calls over time, and everything about one call."""
