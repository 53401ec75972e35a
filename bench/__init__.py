"""Measures tollkeeper and other gateways in one run."""
