"""The engine and the PostgreSQL that the gateway brings along."""
