"""Obtains and renews expiring tokens, and signs requests, for providers that do not use keys."""
