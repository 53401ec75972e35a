"""The HTTP server and what every endpoint shares: parsing, envelopes, event streams, request memory.

Knows no endpoint.
"""
