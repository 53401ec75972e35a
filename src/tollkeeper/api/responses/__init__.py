"""Implements the Responses face, the protocol of POST /v1/responses. It turns requests into calls and
the events of an answer into Responses results."""
