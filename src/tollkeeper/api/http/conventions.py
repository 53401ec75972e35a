"""What the HTTP face needs to know of the settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """What the HTTP face needs to know of the settings."""

    body_bytes_max: int
    body_timeout_s: float
    customer_key_header: str
    session_headers: tuple[str, ...]
    # Types of the server tools that token counting takes.
    messages_web_tools: frozenset[str]
    # GET /v1/models is served, which the interface does not show.
    model_listing: bool
