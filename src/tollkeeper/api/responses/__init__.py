"""Responses: from the request to a call, and from the call's events to Responses again."""
