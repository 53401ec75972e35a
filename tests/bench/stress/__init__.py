"""The load programme and the soak."""
