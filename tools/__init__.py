"""Contains the project's development tools: the documentation site, the API reference, console pictures
and import rules."""
