"""Defines the configuration of one backend. This module reads no file: `bootstrap` creates the
configuration from the settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from tollkeeper.backends.credentials import CredentialKind, is_header_text
from tollkeeper.backends.identities import Identity

_DEFAULT_PORTS = {"http": 80, "https": 443}
# The user and password in an address: everything after the scheme and up to the last @. An earlier
# @ may be a part of an unencoded password.
_USER_AND_PASSWORD = re.compile(r"^((?:[a-z][a-z0-9+.-]*://)?).*@", re.IGNORECASE | re.DOTALL)
_QUERY_OR_FRAGMENT = re.compile(r"[?#].*", re.DOTALL)
_INVALID_PORT = re.compile(
    r"^([a-z][a-z0-9+.-]*://(?>\[[^\]]*\]|[^/:]*)):(?![0-9]{1,5}(?:/|$))[^/]*", re.IGNORECASE
)


class WireProtocol(StrEnum):
    """Lists the protocols of backends. The comments show the request for an answer that is not
    streamed."""

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
    """Lists the fields of a chat request that can contain the output limit. Many servers support
    only one of the two fields, and ignore or reject the other field."""

    # Keeps the field that the client used.
    SAME_AS_CLIENT = "same_as_client"
    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class Tokenizer(StrEnum):
    """Lists the requests with which a backend counts the tokens of a prompt without answering the
    prompt."""

    NONE = "none"
    # POST /tokenize with the model, messages and tools; the answer has `count`.
    VLLM = "vllm"
    # POST {url}/chat/completions/input_tokens with the chat body; the answer has `input_tokens`.
    LLAMA_CPP = "llama_cpp"
    # The token count request of the backend's protocol: Messages, Gemini or Converse.
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class BillingRules:
    """Says how a provider bills what its answers don't show. The defaults are for a provider that
    publishes no rule. A preset sets the rules, except `cache_adds_to_prompt`, which is a setting."""

    # The finish reason of a chat answer for whose tokens the provider bills nothing.
    free_finish: str | None = None
    # Whether the last running total of a stream that breaks off is the bill.
    bills_running_totals: bool = False
    # Whether cached tokens in a chat report are in addition to the prompt's tokens, even if the report
    # doesn't show it (Grok at Azure).
    cache_adds_to_prompt: bool = False


NO_BILLING_RULES = BillingRules()


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Configures one backend: its replicas, which serve the same models, and the limits of every
    request. Fields with a default value cannot be changed by settings, because an operator would
    have no way to choose a better value."""

    name: str
    # Base addresses of the replicas, including a path such as `/v1`.
    urls: tuple[str, ...]
    protocol: WireProtocol
    api_key: str | None = field(repr=False)
    # The file from which `api_key` was read, or "". After a change, the file is read again.
    api_key_file: str
    # The header that contains the key, or the kind of the identity.
    credential: CredentialKind
    # The identity that obtains tokens or signs requests, if the backend requires tokens or signatures
    # instead of a key; otherwise None.
    identity: Identity | None
    # Additional headers of every request.
    headers: Mapping[str, str]
    # A file with the only trusted certificates. "" means the trusted certificates of the system.
    tls_ca_file: str

    connect_timeout_s: float
    # The longest pause in an answer that has begun. Before the answer begins, only the deadline of
    # the call limits the wait.
    idle_timeout_s: float
    # The maximum number of other replicas to which a failed call is sent. A call is only sent to
    # another replica if the failed attempt cannot have been charged.
    retries: int
    # Whether to request a stream from the backend even if the client wants JSON. The embedded model
    # server needs a stream: it stops working on a call of a disconnected client only if the call is
    # streamed.
    always_stream: bool
    # Fields that are added to the request of every call, because this kind of server needs them.
    extra_fields: Mapping[str, Any]

    # The next five fields are only for the chat protocol. `output_limit_field` names the field of a request
    # that contains the output limit.
    output_limit_field: OutputLimitField
    # Whether a request for a stream asks for usage with `stream_options`.
    include_usage: bool
    # The gateway rejects a request with one of `refused_fields`. It renames or omits the other fields in
    # the request to the backend.
    refused_fields: tuple[str, ...]
    renamed_fields: Mapping[str, str]
    omitted_fields: tuple[str, ...]

    # Only for the Responses protocol: whether a request may contain reasoning as plain text.
    takes_reasoning_text: bool
    tokenizer: Tokenizer
    # The path of the token count request. A path that starts with "/" is relative to the scheme, host
    # and port of the URL; any other path is relative to the URL. "" means the default path.
    tokenize_path: str
    # The maximum number of connections to each replica, from each process.
    connections_max: int
    billing_rules: BillingRules

    # The longest time for a token count request. After this time, the gateway estimates the size of
    # the prompt.
    tokenize_timeout_s: float = 2
    # The maximum size of an answer that is not streamed.
    body_bytes_max: int = 64 << 20
    # The maximum number of idle connections to each replica.
    idle_connections_max: int = 256
    # The time after which the gateway closes an idle connection. Common model servers close idle
    # connections after five seconds. If a request is written while the server closes the connection,
    # the gateway cannot know whether the request ran. So the gateway closes idle connections earlier.
    keep_alive_s: float = 4
    # The maximum number of calls that wait for a connection to a replica if all its connections are
    # in use. The calls of one organization may be at most a quarter of this number.
    connections_waiting_max: int = 1024

    # The number of successive failures after which a replica is ejected (not called for a while).
    failures_to_eject: int = 3
    # The duration of the first ejection. After each failed probe, the duration doubles, up to the
    # maximum.
    ejection_s: float = 1
    ejection_s_max: float = 10
    # A replica is ejected only if calls of at least this many organizations failed. If fewer
    # organizations use the backend, calls of all these organizations must have failed.
    organizations_to_eject: int = 2

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) != len(self.urls):
            raise ValueError("urls must be distinct, and there must be at least one")
        for url in self.urls:
            host_and_port(url)
        if self.api_key is not None and not is_header_text(self.api_key):
            raise ValueError("the API key must be printable ASCII without spaces")


def host_and_port(url: str) -> tuple[str, int]:
    """Returns the host and the port of a base address. Raises ValueError if the address is not http
    or https, or has parts that a base address cannot have."""
    shown = repr(shown_url(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # `from None`, because the original error quotes parts of the address, which may be secret.
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
    shown = _USER_AND_PASSWORD.sub(r"\1***@", url)
    shown = _QUERY_OR_FRAGMENT.sub("?***", shown)
    return _INVALID_PORT.sub(r"\1:***", shown)
