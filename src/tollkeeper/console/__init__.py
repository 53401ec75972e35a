"""The web console: pages for operators over the same services as the API and the commands."""
