"""Contains everything that all endpoints share: requests, routing, error envelopes, event streams,
metrics."""
