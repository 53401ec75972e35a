"""The HTTP code that all endpoints share."""
