"""Replays published advisories about gateways and their libraries against this gateway."""
