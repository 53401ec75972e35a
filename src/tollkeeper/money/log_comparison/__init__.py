"""Calls in the request log that the ledger lost."""
