"""Measurements: what tollkeeper costs, side by side with others, in one run."""
