"""Contains the HTTP code that all endpoints share: requests, routing, error envelopes, event streams
and metrics."""
