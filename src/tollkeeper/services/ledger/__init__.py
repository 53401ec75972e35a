"""The use cases about money."""
