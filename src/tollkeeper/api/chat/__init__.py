"""Implements the chat face, the protocol of POST /v1/chat/completions. It turns requests into calls
and the events of an answer into chat completions."""
