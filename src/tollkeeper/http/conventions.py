"""The settings of the HTTP API."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """Some enable endpoints and fields that the interface doesn't have."""

    body_bytes_max: int
    # Of all requests in progress in this process (see `RequestMemory`).
    requests_bytes_max: int
    customer_key_header: str
    session_headers: tuple[str, ...]
    # GET /v1/models.
    model_listing: bool
    # GET /v1/key/usage.
    key_usage: bool = False
    # POST /v1/messages.
    messages: bool = False
    # In messages of chat requests.
    accept_provider_specific_fields: bool = False
    # Gets a call's cost in USD; empty for no such header.
    cost_header: str = ""
    # Of all arrays and objects of one body together. More is refused before it's decoded.
    body_elements_max: int = 100_000
    # For the whole body, from when the gateway begins to wait for it.
    body_timeout_s: float = 60
