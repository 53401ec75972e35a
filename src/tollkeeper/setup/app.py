"""Builds the public API from settings and services."""

from tollkeeper.faces.app import App
from tollkeeper.faces.routes import routes_for
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.http.conventions import HttpConventions
from tollkeeper.setup.settings import Settings

# All requests in progress in a process share this much memory, or that of `_MAXIMUM_BODIES_MIN` maximum
# bodies if it's more (`RequestMemory`). Fewer such requests fit, because a request needs at least three times
# its body.
_REQUESTS_BYTES_MIN = 128 * 1024 * 1024
_MAXIMUM_BODIES_MIN = 16


def build_app(settings: Settings, services: ApiServices) -> App:
    conventions = http_conventions(settings)
    return App(services, conventions, routes_for(conventions))


def http_conventions(settings: Settings) -> HttpConventions:
    return HttpConventions(
        body_bytes_max=settings.limits.body_bytes,
        requests_bytes_max=max(
            _REQUESTS_BYTES_MIN, _MAXIMUM_BODIES_MIN * settings.limits.body_bytes
        ),
        customer_key_header=settings.auth.customer_key_header,
        session_headers=settings.sessions.headers,
        model_listing=settings.extensions.model_listing,
        key_usage=settings.extensions.key_usage,
        messages=settings.extensions.messages,
        accept_provider_specific_fields=settings.conventions.accept_provider_specific_fields,
        cost_header=settings.extensions.cost_header,
    )
