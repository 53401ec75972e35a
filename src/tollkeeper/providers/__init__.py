"""Model servers: wires, replicas, routing, presets, identities.

Knows neither the clients' protocols nor accounts.
"""
