"""Decodes Messages answers. Tolerant, because imitating servers differ: unknown types are ignored,
even if their fields have unexpected values."""

from functools import partial
from typing import Any

import msgspec

from tollkeeper.core.prompt import SEARCH_RESULTS, SERVER_TOOL_USE, FreeObject
from tollkeeper.providers.answer_json import (
    ABSENT,
    MalformedAnswer,
    decode,
    decode_any,
    decode_whole,
    type_of,
    value_or_none,
)

MESSAGE_START = "message_start"
MESSAGE_DELTA = "message_delta"
MESSAGE_STOP = "message_stop"
BLOCK_START = "content_block_start"
BLOCK_DELTA = "content_block_delta"
BLOCK_STOP = "content_block_stop"
ERROR = "error"
_KNOWN_EVENTS = frozenset(
    {MESSAGE_START, MESSAGE_DELTA, MESSAGE_STOP, BLOCK_START, BLOCK_DELTA, BLOCK_STOP, ERROR}
)

TEXT = "text"
THINKING = "thinking"
REDACTED_THINKING = "redacted_thinking"
TOOL_USE = "tool_use"
_KNOWN_BLOCKS = frozenset({TEXT, THINKING, REDACTED_THINKING, TOOL_USE})

# By the type of an error record.
STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Citation(msgspec.Struct, gc=False):
    type: str | None = None
    url: str | None = None
    title: str | None = None


class Block(msgspec.Struct, gc=False):
    """Or the beginning of one in a stream."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    citations: list[Citation] | None = None


class BlockDelta(msgspec.Struct, gc=False):
    """In a `message_delta` event, a change of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: Citation | None = None
    stop_reason: str | None = None
    stop_sequence: Any = None


class StreamEvent(msgspec.Struct, gc=False):
    type: str | None = None
    index: int = 0
    message: msgspec.Raw = ABSENT
    content_block: msgspec.Raw = ABSENT
    delta: BlockDelta | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Message(msgspec.Struct, gc=False):
    """Or the beginning of a streamed one, still without content."""

    type: str | None = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_sequence: Any = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


_event_decoder = msgspec.json.Decoder(StreamEvent)
_block_decoder = msgspec.json.Decoder(Block)
_message_decoder = msgspec.json.Decoder(Message)
decode_message = partial(decode_whole, _message_decoder)


def decode_event(payload: bytes) -> StreamEvent | None:
    """None for an unknown type, such as a ping."""
    try:
        event = decode(_event_decoder, payload)
    except MalformedAnswer:
        if type_of(payload) in _KNOWN_EVENTS:
            raise
        return None
    # Some servers send another protocol's error, without a type.
    if event.type in _KNOWN_EVENTS or value_or_none(event.error) is not None:
        return event
    return None


def decode_block(raw: msgspec.Raw) -> Block | None:
    """None for a block that the gateway doesn't read, such as web search results."""
    record = value_or_none(raw)
    if record is None:
        raise MalformedAnswer("a block is missing")
    if type_of(record) not in _KNOWN_BLOCKS:
        return None
    return decode(_block_decoder, record)


def is_search_result(raw: msgspec.Raw) -> bool:
    """Not of a failed search, for which the provider doesn't charge."""
    if SEARCH_RESULTS.encode() not in bytes(raw):
        return False
    block = decode_any(raw)
    return (
        isinstance(block, dict)
        and block.get("type") == SEARCH_RESULTS
        and isinstance(block.get("content"), list)
    )


def decode_search_block(raw: msgspec.Raw) -> FreeObject | None:
    block = decode_any(raw)
    if not isinstance(block, dict):
        return None
    is_call = block.get("type") == SERVER_TOOL_USE and block.get("name") == "web_search"
    if is_call and isinstance(block.get("input"), dict):
        return block
    return block if block.get("type") == SEARCH_RESULTS and "content" in block else None


def decode_start(raw: msgspec.Raw) -> Message:
    """The event may contain none."""
    record = value_or_none(raw)
    return Message() if record is None else decode(_message_decoder, record)
