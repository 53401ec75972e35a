"""Requests that ask model servers for a prompt's tokens, each in its own format."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from tollkeeper.core.inference import Call
from tollkeeper.providers.chat.request import encode_template_input
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.config import BackendConfig, Tokenizer
from tollkeeper.providers.native_wire import CountingWire
from tollkeeper.providers.wires import beta_header, wire_for

# More is impossible, and ignored.
_COUNT_MAX = 2**53
# To render the prompt with the chat template.
_VLLM_FIELDS = ("messages", "tools", "chat_template_kwargs")


def _no_headers(call: Call) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    path_for: Callable[[str], str]
    encode: Callable[[Call], bytes]
    # In the answer.
    count_field: str
    headers_for: Callable[[Call], bytes] = _no_headers


def tokenize_request(config: BackendConfig) -> TokenizeRequest | None:
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
            assert isinstance(wire, CountingWire)
            configured = config.tokenize_path
            return TokenizeRequest(
                _always(configured) if configured else wire.count_path_for,
                wire.encode_count,
                wire.count_field,
                partial(beta_header, wire),
            )


def _always(path: str) -> Callable[[str], str]:
    return lambda upstream_model: path


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
    return ChatWire().encode_request(call, stream=False, extra={})
