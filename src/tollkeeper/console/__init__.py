"""Serves the web console: pages for operators that use the same services as the API and the
commands."""
