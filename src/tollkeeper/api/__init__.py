"""Serves the public HTTP API. The package contains the JSON types, the route table, the handlers and
the error envelopes, but no business rules."""
