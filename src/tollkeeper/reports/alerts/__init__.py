"""Conditions that someone should look at, raised once and cleared once."""
