"""Tests the gateway with more load than it can serve, with hostile clients, and in a soak with faults."""
