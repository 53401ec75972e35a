"""Implements the chat wire: encodes requests for chat servers and reads their answers."""
