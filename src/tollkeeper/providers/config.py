"""One backend's configuration. `bootstrap` creates it from the settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from tollkeeper.providers.credentials import CredentialKind, is_header_text
from tollkeeper.providers.identities import Identity

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Up to the last @: an earlier one may be in an unencoded password.
_USER_AND_PASSWORD = re.compile(r"^((?:[a-z][a-z0-9+.-]*://)?).*@", re.IGNORECASE | re.DOTALL)
_QUERY_OR_FRAGMENT = re.compile(r"[?#].*", re.DOTALL)
_INVALID_PORT = re.compile(
    r"^([a-z][a-z0-9+.-]*://(?>\[[^\]]*\]|[^/:]*)):(?![0-9]{1,5}(?:/|$))[^/]*", re.IGNORECASE
)


class WireProtocol(StrEnum):
    """With the request for an answer that isn't streamed."""

    # POST {url}/chat/completions
    CHAT = "chat"
    # POST {url}/responses
    RESPONSES = "responses"
    # POST {url}/messages: Anthropic's protocol.
    MESSAGES = "messages"
    # POST {url}/{model}:rawPredict: Anthropic's protocol at Vertex AI.
    VERTEX_MESSAGES = "vertex_messages"
    # POST {url}/models/{model}:generateContent: Google's protocol.
    GEMINI = "gemini"
    # POST {url}/{model}:generateContent: Google's protocol at Vertex AI.
    VERTEX_GEMINI = "vertex_gemini"
    # POST {url}/model/{model}/converse: Amazon Bedrock's protocol for all of its models.
    CONVERSE = "converse"
    # POST {url}/model/{model}/invoke: Anthropic's protocol at Amazon Bedrock.
    BEDROCK_MESSAGES = "bedrock_messages"


class OutputLimitField(StrEnum):
    """Many servers support only one of the two, and ignore or reject the other."""

    # The client's field.
    SAME_AS_CLIENT = "same_as_client"
    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class Tokenizer(StrEnum):
    """Requests that count a prompt's tokens without answering it."""

    NONE = "none"
    # POST /tokenize with the model, messages and tools; the answer has `count`.
    VLLM = "vllm"
    # POST {url}/chat/completions/input_tokens with the chat body; the answer has `input_tokens`.
    LLAMA_CPP = "llama_cpp"
    # The protocol's own: Messages, Gemini or Converse.
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class BillingRules:
    """What a provider bills but its answers don't show. Presets set the rules, except
    `cache_adds_to_prompt`, a setting. The defaults are for providers that publish no rule."""

    # A chat answer with this finish reason costs nothing.
    free_finish: str | None = None
    # If the stream breaks off.
    bills_running_totals: bool = False
    # Cached tokens in a chat report are in addition to the prompt's, even if it doesn't show it
    # (Grok at Azure).
    cache_adds_to_prompt: bool = False


NO_BILLING_RULES = BillingRules()


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Settings can't change the fields with defaults: operators couldn't choose better values."""

    name: str
    # With a path such as `/v1`.
    urls: tuple[str, ...]
    protocol: WireProtocol
    api_key: str | None = field(repr=False)
    # Of `api_key`, or "". Read again after a change.
    api_key_file: str
    # The key's header, or the identity's kind.
    credential: CredentialKind
    # Obtains tokens or signs requests, if the backend doesn't take a key.
    identity: Identity | None
    # Of every request.
    headers: Mapping[str, str]
    # The only trusted certificates. "" means the system's.
    tls_ca_file: str

    connect_timeout_s: float
    # The longest pause in an answer that has begun. Before that, only the call's deadline
    # limits the wait.
    idle_timeout_s: float
    # The most other replicas to which a call is sent, if the failed attempt can't have been
    # charged.
    retries: int
    # Even if the client wants JSON. The embedded model server only stops working on a
    # disconnected client's call if it's streamed.
    always_stream: bool
    # Added to every call's request, because this kind of server needs them.
    extra_fields: Mapping[str, Any]

    # The next five are only for the chat protocol.
    output_limit_field: OutputLimitField
    # With `stream_options`.
    include_usage: bool
    # The gateway rejects requests with one of these, and renames or omits the fields below.
    refused_fields: tuple[str, ...]
    renamed_fields: Mapping[str, str]
    omitted_fields: tuple[str, ...]

    # Only for the Responses protocol: reasoning may be plain text in a request.
    takes_reasoning_text: bool
    tokenizer: Tokenizer
    # From the host if it starts with "/", otherwise from the URL. "" means the default.
    tokenize_path: str
    # To each replica, from each process.
    connections_max: int
    billing_rules: BillingRules

    # After this, the gateway estimates the prompt's size.
    tokenize_timeout_s: float = 2
    # Of an answer that isn't streamed.
    body_bytes_max: int = 64 << 20
    # To each replica.
    idle_connections_max: int = 256
    # Common servers close idle connections after five seconds. If that meets a request, nobody
    # knows whether it ran, so the gateway closes them earlier.
    keep_alive_s: float = 4
    # Calls that wait for a connection to a replica, at most a quarter of them from one
    # organization.
    connections_waiting_max: int = 1024

    # In a row.
    failures_to_eject: int = 3
    # It doubles after each failed probe, up to the maximum.
    ejection_s: float = 1
    ejection_s_max: float = 10
    # Calls of this many organizations must fail to eject a replica, or of all that use the
    # backend if they are fewer.
    organizations_to_eject: int = 2

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) != len(self.urls):
            raise ValueError("urls must be distinct, and there must be at least one")
        for url in self.urls:
            host_and_port(url)
        if self.api_key is not None and not is_header_text(self.api_key):
            raise ValueError("the API key must be printable ASCII without spaces")


def host_and_port(url: str) -> tuple[str, int]:
    """Raises ValueError if it isn't http or https, or has parts that a base address can't have."""
    shown = repr(shown_url(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # `from None`: the original quotes parts of the address, which may be secret.
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
    """Without what may be secret: user and password, query and fragment, and a port that's no
    number."""
    shown = _USER_AND_PASSWORD.sub(r"\1***@", url)
    shown = _QUERY_OR_FRAGMENT.sub("?***", shown)
    return _INVALID_PORT.sub(r"\1:***", shown)
