"""What the gateway brings along and runs beside itself: the engine, the PostgreSQL, the bridge."""
