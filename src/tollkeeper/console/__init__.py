"""Serves the web console. Its pages for operators use the same services as the API and the
commands."""
