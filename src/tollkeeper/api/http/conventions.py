"""The settings that the HTTP API needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """The settings that the HTTP API needs."""

    body_bytes_max: int
    # Memory of all requests in progress in this process. One key may use half of it.
    bodies_bytes_max: int
    customer_key_header: str
    session_headers: tuple[str, ...]
    # Whether GET /v1/models is served, which is not part of the interface.
    model_listing: bool
    # Whether GET /v1/key/usage is served, which is not part of the interface.
    key_usage: bool = False
    # Whether POST /v1/messages is served, which is not part of the interface.
    messages: bool = False
    # The name of the header with a call's cost in USD; empty: there is none.
    cost_header: str = ""
    # Elements of the arrays and objects of one body, together. More is a 400, before anything is
    # built from the body.
    body_elements_max: int = 100_000
    # How long a body may take to arrive.
    body_timeout_s: float = 60
