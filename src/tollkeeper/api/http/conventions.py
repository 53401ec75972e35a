"""Defines the settings of the HTTP API."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """Contains the settings of the HTTP API."""

    body_bytes_max: int
    # The memory of all requests in progress in this process. One key may use half of it.
    bodies_bytes_max: int
    customer_key_header: str
    session_headers: tuple[str, ...]
    # Whether GET /v1/models is served, which is not part of the interface.
    model_listing: bool
    # Whether GET /v1/key/usage is served, which is not part of the interface.
    key_usage: bool = False
    # Whether POST /v1/messages is served, which is not part of the interface.
    messages: bool = False
    # The header with a call's cost in USD; empty for none.
    cost_header: str = ""
    # The maximum number of elements in all arrays and objects of one body. More is answered with
    # 400, before anything is built from the body.
    body_elements_max: int = 100_000
    # How long a body may take to arrive.
    body_timeout_s: float = 60
