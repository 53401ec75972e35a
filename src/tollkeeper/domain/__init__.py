"""Pure values and rules: the standard library and msgspec only, no await, no configuration."""
