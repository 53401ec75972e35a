"""Bytes to and from model servers: HTTP/1.1, connections, event streams."""
