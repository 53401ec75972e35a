"""Load beyond what the gateway can serve, hostile connections, and a soak with faults."""
