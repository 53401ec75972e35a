"""Contains the values and rules of the gateway. Modules here do no input or output, do not await,
read no settings, and import only the standard library and msgspec."""
