"""Asks model servers for the token count of a prompt: one request format per kind of server."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tollkeeper.backends.anthropic.wire import MessagesWire
from tollkeeper.backends.chat.request import encode_request, encode_template_input
from tollkeeper.backends.config import BackendConfig, Tokenizer
from tollkeeper.backends.converse.wire import ConverseWire
from tollkeeper.backends.gemini.wire import GeminiWire
from tollkeeper.backends.wires import wire_for
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.inference import Call

_COUNT_MAX = 2**53
# The request fields that change the server's rendered prompt.
_VLLM_FIELDS = ("messages", "tools", "chat_template_kwargs")


def _no_headers(call: Call) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Describes the request to one kind of server: path, body, and the field of its answer with the
    count."""

    path_for: Callable[[Model], str]
    encode: Callable[[Call], bytes]
    count_field: str
    # Header lines of one call.
    headers_for: Callable[[Call], bytes] = _no_headers


def tokenize_request(config: BackendConfig) -> TokenizeRequest | None:
    """Returns the request format of the backend's tokenizer; None if it has no tokenizer."""
    match config.tokenizer:
        case Tokenizer.NONE:
            return None
        case Tokenizer.VLLM:
            path = config.tokenize_path or "/tokenize"
            return TokenizeRequest(_always(path), _vllm_body, "count")
        case Tokenizer.LLAMA_CPP:
            path = config.tokenize_path or "chat/completions/input_tokens"
            return TokenizeRequest(_always(path), _chat_body, "input_tokens")
        case Tokenizer.PROTOCOL:
            wire = wire_for(config)
            assert isinstance(wire, MessagesWire | GeminiWire | ConverseWire)
            own = config.tokenize_path
            return TokenizeRequest(
                wire.count_path_for if own is None else _always(own),
                wire.encode_count,
                wire.count_field,
                wire.headers_for if isinstance(wire, MessagesWire) else _no_headers,
            )


def _always(path: str) -> Callable[[Model], str]:
    return lambda model: path


def read_count(body: bytes, field: str) -> int | None:
    try:
        count = msgspec.json.decode(body, type=dict[str, object]).get(field)
    except (ValueError, RecursionError):
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _COUNT_MAX:
        return None
    return count


def _vllm_body(call: Call) -> bytes:
    return encode_template_input(call, _VLLM_FIELDS)


def _chat_body(call: Call) -> bytes:
    return encode_request(call, stream=False)
