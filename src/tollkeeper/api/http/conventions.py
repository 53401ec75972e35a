"""Defines the settings of the HTTP API."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """Contains the settings of the HTTP API. Some settings enable endpoints that are not part of the
    interface (the specification of the gateway's API)."""

    body_bytes_max: int
    # The maximum memory of all requests in progress in this process (see `RequestMemory`).
    requests_bytes_max: int
    customer_key_header: str
    session_headers: tuple[str, ...]
    # Whether GET /v1/models is served (not part of the interface).
    model_listing: bool
    # Whether GET /v1/key/usage is served (not part of the interface).
    key_usage: bool = False
    # Whether POST /v1/messages is served (not part of the interface).
    messages: bool = False
    # Whether messages of chat requests may have `provider_specific_fields` (not part of the interface).
    accept_provider_specific_fields: bool = False
    # The name of the response header with a call's cost in USD. If the name is empty, the header is not sent.
    cost_header: str = ""
    # The maximum number of elements in all arrays and objects of one body together. A body with more
    # elements is answered with 400 before it is decoded.
    body_elements_max: int = 100_000
    # The time in which the whole body must arrive, after the gateway has begun to wait for it.
    body_timeout_s: float = 60
