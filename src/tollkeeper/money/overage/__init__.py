"""Calls that cost more than their holds, and what to expect of the next ones."""
