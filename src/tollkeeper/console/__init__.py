"""Serves the web console. The console's pages use the same services as the API and the
commands."""
