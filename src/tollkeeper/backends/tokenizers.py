"""Asks model servers for the token count of a prompt: one request format per kind of server."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tollkeeper.backends.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.backends.bedrock_path import count_tokens_path
from tollkeeper.backends.chat.request import encode_request, encode_template_input
from tollkeeper.backends.config import BackendConfig, Tokenizer
from tollkeeper.backends.converse.wire import ConverseWire
from tollkeeper.backends.gemini.wire import Endpoint as GeminiEndpoint
from tollkeeper.backends.gemini.wire import GeminiWire
from tollkeeper.backends.wires import gemini_wire_for, messages_wire_for
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.inference import Call

_COUNT_MAX = 2**53
# For servers of other protocols that count as Anthropic does: vLLM, SGLang, llama.cpp.
_MESSAGES_WIRE = MessagesWire(Endpoint.ANTHROPIC)
_GEMINI_WIRE = GeminiWire(GeminiEndpoint.GEMINI)
_CONVERSE_WIRE = ConverseWire()
# The request fields that change the prompt that the server renders.
_VLLM_FIELDS = ("messages", "tools", "chat_template_kwargs")


def _no_headers(call: Call) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """How one kind of server is asked: path, body, and the field of its answer with the count."""

    path_for: Callable[[Model], str]
    encode: Callable[[Call], bytes]
    count_field: str
    # Header lines of one call.
    headers_for: Callable[[Call], bytes] = _no_headers


def tokenize_request(config: BackendConfig) -> TokenizeRequest | None:
    """The request format of the backend's tokenizer; None where it has no tokenizer."""
    match config.tokenizer:
        case Tokenizer.NONE:
            return None
        case Tokenizer.VLLM:
            path = config.tokenize_path or "/tokenize"
            return TokenizeRequest(_always(path), _vllm_body, "count")
        case Tokenizer.LLAMA_CPP:
            path = config.tokenize_path or "chat/completions/input_tokens"
            return TokenizeRequest(_always(path), _chat_body, "input_tokens")
        case Tokenizer.MESSAGES:
            wire = messages_wire_for(config) or _MESSAGES_WIRE
            paths = _paths(config, wire.count_path_for)
            return TokenizeRequest(paths, wire.encode_count, wire.count_field, wire.headers_for)
        case Tokenizer.GEMINI:
            counting = gemini_wire_for(config) or _GEMINI_WIRE
            paths = _paths(config, counting.count_path_for)
            return TokenizeRequest(paths, counting.encode_count, "totalTokens")
        case Tokenizer.CONVERSE:
            paths = _paths(config, count_tokens_path)
            return TokenizeRequest(paths, _CONVERSE_WIRE.encode_count, "inputTokens")


def _paths(config: BackendConfig, by_default: Callable[[Model], str]) -> Callable[[Model], str]:
    return by_default if config.tokenize_path is None else _always(config.tokenize_path)


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
