"""`tollkeeper openapi`: prints the OpenAPI document."""

from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.output import Document
from tollkeeper.faces.openapi import HeaderNames, document
from tollkeeper.faces.routes import routes_for
from tollkeeper.setup.app import http_conventions
from tollkeeper.setup.settings import load_settings

app = command_app()


@command(app, "openapi", example="tollkeeper openapi --json")
def openapi(invocation: Invocation) -> Document:
    """Print the OpenAPI document of the HTTP API.

    It has the extensions and the names of headers in the settings."""
    # Not `invocation.settings`: this needs no database, so no settings file either.
    conventions = http_conventions(load_settings(invocation.config))
    names = HeaderNames(
        conventions.customer_key_header, conventions.session_headers, conventions.cost_header
    )
    return Document(document(routes_for(conventions), names))
