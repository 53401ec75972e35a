"""Runs the embedded servers that a gateway starts itself: the model server (engine) and PostgreSQL."""
