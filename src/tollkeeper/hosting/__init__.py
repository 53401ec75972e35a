"""Runs the processes and sockets of a gateway: supervisor, workers, HTTP server, operator listener."""
