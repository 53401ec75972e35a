"""Waits, turns, threads and logs, for every layer above the domain."""
