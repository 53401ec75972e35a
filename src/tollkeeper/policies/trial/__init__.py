"""Trying a rule on sample texts."""
