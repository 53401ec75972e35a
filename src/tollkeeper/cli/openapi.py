"""Implements `tollkeeper openapi`, which prints the OpenAPI document."""

from tollkeeper.api.openapi import document
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.output import Document

app = command_app()


@command(app, "openapi", example="tollkeeper openapi --json")
def openapi(_invocation: Invocation) -> Document:
    """Print the OpenAPI document of the HTTP API."""
    return Document(document())
