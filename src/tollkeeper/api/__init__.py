"""The public HTTP API: JSON types, routes, handlers and error envelopes, but no business rules."""
