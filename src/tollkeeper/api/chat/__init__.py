"""Implements the chat face: turns requests into calls, and the events of a call into chat
completions."""
