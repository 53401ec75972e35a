"""Implements the Responses face: turns requests into calls, and the events of a call into
Responses."""
