"""Obtains and renews credentials whose tokens expire or that sign requests."""
