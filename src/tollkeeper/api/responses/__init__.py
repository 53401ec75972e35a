"""Implements the Responses protocol (POST /v1/responses). Turns requests into calls, and the events of an
answer into Responses results."""
