"""Costs by day, for the API, the pages and the commands."""
