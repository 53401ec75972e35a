"""Provides an inference gateway with exact accounting."""

# The version of the package and of the HTTP interface, as the OpenAPI document shows it.
__version__ = "0.2.0"
