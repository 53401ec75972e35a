"""Serves the public HTTP API: wire types, the route table, error envelopes. It has no business
rules."""
