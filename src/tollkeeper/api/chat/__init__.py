"""Implements the chat protocol (POST /v1/chat/completions). Turns requests into calls, and the events of
an answer into chat completions."""
