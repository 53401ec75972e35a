"""Implements the chat completions protocol towards backends: encodes requests and reads answers."""
