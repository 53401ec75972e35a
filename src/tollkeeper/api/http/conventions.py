"""The settings that the HTTP API needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """The settings that the HTTP API needs."""

    body_bytes_max: int
    # Elements of the arrays and objects of one body.
    body_elements_max: int
    # Memory of all requests in progress, in this process and of one key in it.
    bodies_bytes_max: int
    key_bodies_bytes_max: int
    body_timeout_s: float
    customer_key_header: str
    session_headers: tuple[str, ...]
    # The types of server tools that token counting accepts.
    messages_web_tools: frozenset[str]
    # Whether GET /v1/models is served, which is not part of the interface.
    model_listing: bool
    # Whether GET /v1/key/usage is served, which is not part of the interface.
    key_usage: bool = False
    # Whether POST /v1/messages is served, which is not part of the interface.
    messages: bool = False
    # The name of the header with a call's cost in USD; empty: there is none.
    cost_header: str = ""
