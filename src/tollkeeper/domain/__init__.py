"""Contains values and rules without input or output: standard library and msgspec only, no await,
no settings."""
