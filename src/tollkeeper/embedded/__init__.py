"""Runs the processes that the gateway starts itself: the engine and the embedded PostgreSQL."""
