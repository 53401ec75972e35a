"""The organization side of the interface, one file a noun."""
