"""Credentials whose tokens expire or that sign requests: how they are obtained and renewed."""
