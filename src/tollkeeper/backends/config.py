"""What one backend of the OpenAI-compatible kind is configured with. Reads no file itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Everything up to the last @, which may be a part of a password that is not encoded.
_USER = re.compile(r"^((?:[a-z][a-z0-9+.-]*://)?).*@", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_NO_PORT = re.compile(
    r"^([a-z][a-z0-9+.-]*://(?>\[[^\]]*\]|[^/:]*)):(?![0-9]{1,5}(?:/|$))[^/]*", re.IGNORECASE
)


class WireProtocol(StrEnum):
    """What the backend is called with."""

    # POST {url}/chat/completions
    CHAT = "chat"
    # POST {url}/responses
    RESPONSES = "responses"


class Tokenizer(StrEnum):
    """How the backend counts the tokens of a prompt before it answers it."""

    NONE = "none"
    # POST /tokenize with model and messages, answered with `count`.
    VLLM = "vllm"
    # POST {base}/chat/completions/input_tokens with the chat body, answered with `input_tokens`.
    LLAMA_CPP = "llama_cpp"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """One backend: replicas that serve the same models, and every bound of talking to them.

    Nothing has a default: what an operator may set is a setting, and has its default there."""

    name: str
    # Base addresses of the replicas, up to and with `/v1`.
    urls: tuple[str, ...]
    protocol: WireProtocol
    api_key: str | None = field(repr=False)
    # Trusted beside nothing else when set; None: what the system trusts.
    tls_ca_file: str | None

    connect_timeout_s: float
    # Silence inside an answer that has begun; the wait for the beginning is the call's deadline.
    idle_timeout_s: float
    # How often a call goes to another replica, only while nothing can have been charged.
    retries: int
    # Stream from the backend also for callers that want JSON, because only so it can be stopped.
    always_stream: bool
    # Fields of this server's own that go with every call.
    extra_fields: Mapping[str, Any]

    tokenizer: Tokenizer
    # Against the origin of the url if it starts with "/", else below the url; None: the usual one.
    tokenize_path: str | None
    tokenize_timeout_s: float

    # Of one record of a stream, and of an answer that is none.
    frame_bytes_max: int
    body_bytes_max: int
    # To each replica, and those of them that wait for the next call, for how long.
    connections_max: int
    idle_connections_max: int
    keep_alive_s: float

    # Failures in a row after which a replica is left alone, for how long at first and at most.
    failures_to_eject: int
    ejection_s: float
    ejection_s_max: float

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) != len(self.urls):
            raise ValueError("urls must be distinct, and at least one")
        for url in self.urls:
            host_and_port(url)
        if self.api_key is not None and not _is_header_text(self.api_key):
            raise ValueError("the API key must be printable ASCII without spaces")


def host_and_port(url: str) -> tuple[str, int]:
    """Where a base address leads. Raises ValueError for one that requests cannot be built on
    without surprises."""
    shown = repr(shown_url(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Its own message quotes parts of the address.
        raise ValueError(f"{shown} is not an http or https address") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{shown} must start with http:// or https://")
    if not parts.hostname:
        raise ValueError(f"{shown} names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{shown} must have no user, query or fragment")
    if not _is_header_text(url):
        raise ValueError(f"{shown} must be printable ASCII without spaces")
    return parts.hostname, port or _DEFAULT_PORTS[parts.scheme]


def shown_url(url: str) -> str:
    """The address for a message: without what may be a secret, which is its user and password, its
    query and fragment, and a port that is none."""
    shown = _USER.sub(r"\1***@", url)
    shown = _QUERY.sub("?***", shown)
    return _NO_PORT.sub(r"\1:***", shown)


def _is_header_text(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
