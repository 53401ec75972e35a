"""Defines the configuration of one backend. Reads no file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from tollkeeper.backends.credentials import CredentialKind, is_header_text
from tollkeeper.backends.identities import Identity

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Everything up to the last @, which may be a part of an unencoded password.
_USER = re.compile(r"^((?:[a-z][a-z0-9+.-]*://)?).*@", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_INVALID_PORT = re.compile(
    r"^([a-z][a-z0-9+.-]*://(?>\[[^\]]*\]|[^/:]*)):(?![0-9]{1,5}(?:/|$))[^/]*", re.IGNORECASE
)


class WireProtocol(StrEnum):
    """Names the backend's protocol."""

    # POST {url}/chat/completions
    CHAT = "chat"
    # POST {url}/responses
    RESPONSES = "responses"
    # POST {url}/messages: Anthropic's protocol.
    MESSAGES = "messages"
    # POST {url}/{model}:rawPredict: the same at Vertex AI.
    VERTEX_MESSAGES = "vertex_messages"
    # POST {url}/models/{model}:generateContent: Google's protocol.
    GEMINI = "gemini"
    # POST {url}/{model}:generateContent: the same at Vertex AI.
    VERTEX_GEMINI = "vertex_gemini"
    # POST {url}/model/{model}/converse: Amazon Bedrock's protocol for all of its models.
    CONVERSE = "converse"
    # POST {url}/model/{model}/invoke: Anthropic's protocol at Amazon Bedrock.
    BEDROCK_MESSAGES = "bedrock_messages"


class OutputBound(StrEnum):
    """Names the field of a chat request with the output limit. Servers ignore or reject the other
    one."""

    # The one that the client used.
    CALLER = "caller"
    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class Tokenizer(StrEnum):
    """Tells how the backend counts the tokens of a prompt without answering it."""

    NONE = "none"
    # POST /tokenize with model and messages; the answer has `count`.
    VLLM = "vllm"
    # POST {url}/chat/completions/input_tokens with the chat body; the answer has `input_tokens`.
    LLAMA_CPP = "llama_cpp"
    # The protocol's own count: Messages, Gemini and Converse.
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Configures one backend: replicas that serve the same models, and the limits of every request
    to them. Limits that no operator can choose well have their value here."""

    name: str
    # Base addresses of the replicas, including `/v1`.
    urls: tuple[str, ...]
    protocol: WireProtocol
    api_key: str | None = field(repr=False)
    # The file that `api_key` was read from, whose changes change the key, or None.
    api_key_file: str | None
    # The header that carries the key.
    credential: CredentialKind
    # The identity for tokens or signatures in place of a key; None for a key, or no credential.
    identity: Identity | None
    # Additional headers of every request.
    headers: Mapping[str, str]
    # The only trusted certificates; None means the system's.
    tls_ca_file: str | None

    connect_timeout_s: float
    # The longest pause inside an answer that has begun. Before that, only the call's deadline
    # limits the wait.
    idle_timeout_s: float
    # How often a call may go to another replica, only while nothing can have been charged.
    retries: int
    # Whether to stream from the backend even for clients that want JSON. The embedded engine needs
    # this: it stops working on an abandoned call only if the call is streamed.
    always_stream: bool
    # Fields that are added to every request, for this kind of server.
    extra_fields: Mapping[str, Any]

    # Chat protocol: the field of the limit, whether a stream is asked for its usage, and the fields
    # that are rejected, renamed or omitted.
    output_bound: OutputBound
    include_usage: bool
    refused_fields: tuple[str, ...]
    renamed_fields: Mapping[str, str]
    omitted_fields: tuple[str, ...]

    tokenizer: Tokenizer
    # Relative to the origin of the url if it starts with "/", else to the url; None means the
    # default.
    tokenize_path: str | None
    # The maximum size of one stream record.
    frame_bytes_max: int
    # The maximum number of connections to each replica, from each process.
    connections_max: int

    # How long a count may take. After that, the size of the prompt is estimated.
    tokenize_timeout_s: float = 2
    # The maximum size of an answer that is not streamed.
    body_bytes_max: int = 64 << 20
    idle_connections_max: int = 256
    # How long an idle connection is kept: less than the five seconds after which common model
    # servers close theirs. If a request is written while the server closes, it is unknown whether
    # it ran.
    keep_alive_s: float = 4
    # The maximum number of calls that wait for a connection to a replica while all are in use; one
    # organization may have a quarter of them.
    connections_waiting_max: int = 1024

    # The number of successive failures that eject a replica, and the time of the first and the
    # longest ejection; each further failure doubles it.
    failures_to_eject: int = 3
    ejection_s: float = 1
    ejection_s_max: float = 10
    # The number of organizations that these failures must come from, if that many use the backend.
    organizations_to_eject: int = 2

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) != len(self.urls):
            raise ValueError("urls must be distinct, and there must be at least one")
        for url in self.urls:
            host_and_port(url)
        if self.api_key is not None and not is_header_text(self.api_key):
            raise ValueError("the API key must be printable ASCII without spaces")


def host_and_port(url: str) -> tuple[str, int]:
    """Returns host and port of a base address. Raises ValueError for an address that is not http or
    https, or has parts that a base address cannot have."""
    shown = repr(shown_url(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The original error is dropped: it quotes parts of the address, which may be a secret.
        raise ValueError(f"{shown} is not an http or https address") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{shown} must start with http:// or https://")
    if not parts.hostname:
        raise ValueError(f"{shown} names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{shown} must have no user, query or fragment")
    if not is_header_text(url):
        raise ValueError(f"{shown} must be printable ASCII without spaces")
    return parts.hostname, port or _DEFAULT_PORTS[parts.scheme]


def shown_url(url: str) -> str:
    """Formats the address for a message, without the parts that may contain a secret: user and
    password, query and fragment, and a port that is not a number."""
    shown = _USER.sub(r"\1***@", url)
    shown = _QUERY.sub("?***", shown)
    return _INVALID_PORT.sub(r"\1:***", shown)
