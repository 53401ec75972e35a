"""Holds that nobody resolved: finding them, marking them, resolving them."""
