"""Manages processes and sockets: the hardened HTTP server, its workers, the operator listener."""
