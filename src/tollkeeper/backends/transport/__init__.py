"""Sends requests to model servers and reads their bytes: HTTP/1.1, connections, event streams."""
