"""Decodes Converse answers of Amazon Bedrock: whole answers, and the records of a stream.

Decoding is tolerant: stream records and blocks of unknown types are ignored.
"""

from typing import Any

import msgspec

from tollkeeper.backends.answer_json import ABSENT, MalformedAnswer, decode, decode_whole
from tollkeeper.domain.inference import Finish

MESSAGE_START = "messageStart"
BLOCK_START = "contentBlockStart"
BLOCK_DELTA = "contentBlockDelta"
BLOCK_STOP = "contentBlockStop"
MESSAGE_STOP = "messageStop"
METADATA = "metadata"
# The type of a tool call that the provider itself executes.
SERVER_TOOL_USE = "server_tool_use"

FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "content_filtered": Finish.CONTENT_FILTER,
    "guardrail_intervened": Finish.CONTENT_FILTER,
}
# Stop reasons which mean that the model wrote an invalid answer.
FAILURES = frozenset({"malformed_model_output", "malformed_tool_use"})


class _Object(msgspec.Struct, gc=False, rename="camel"):
    """Defines the common options of all JSON objects of an answer: field names are in camel case."""


class ToolUse(_Object):
    tool_use_id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    # Most models send a type only for server-side tools. Some models also send a type for the
    # client's tools.
    type: str | None = None


class ReasoningText(_Object):
    text: str | None = None
    signature: str | None = None


class ReasoningBlock(_Object):
    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None
    # Pieces of `reasoning_text` in a stream.
    text: str | None = None
    signature: str | None = None


class CitedText(_Object):
    text: str | None = None


class CitationsContent(_Object):
    content: list[CitedText] | None = None


class Block(_Object):
    """Represents a content block, or the beginning or a piece of a content block in a stream."""

    text: str | None = None
    tool_use: ToolUse | None = None
    reasoning_content: ReasoningBlock | None = None
    citations_content: CitationsContent | None = None


class BlockStart(_Object):
    content_block_index: int = 0
    start: Block | None = None


class BlockDelta(_Object):
    content_block_index: int = 0
    delta: Block | None = None


class MessageStop(_Object):
    stop_reason: str | None = None


class Metadata(_Object):
    usage: msgspec.Raw = ABSENT
    service_tier: Any = None

    @property
    def tier(self) -> str | None:
        kind = self.service_tier.get("type") if isinstance(self.service_tier, dict) else None
        return kind if isinstance(kind, str) else None


class Message(_Object):
    content: list[Block] | None = None


class Output(_Object):
    message: Message | None = None


class Answer(Metadata):
    """Represents an answer that is not streamed."""

    output: Output | None = None
    stop_reason: str | None = None
    # A proxy may send an error in place of an answer.
    error: msgspec.Raw = ABSENT


_answers = msgspec.json.Decoder(Answer)
_starts = msgspec.json.Decoder(BlockStart)
_deltas = msgspec.json.Decoder(BlockDelta)
_stops = msgspec.json.Decoder(MessageStop)
_metadata = msgspec.json.Decoder(Metadata)


def decode_answer(body: bytes) -> Answer:
    return decode_whole(_answers, body)


def decode_start(content: msgspec.Raw) -> BlockStart:
    return decode(_starts, content)


def decode_delta(content: msgspec.Raw) -> BlockDelta:
    return decode(_deltas, content)


def decode_stop(content: msgspec.Raw) -> MessageStop:
    return decode(_stops, content)


def decode_metadata(content: msgspec.Raw) -> Metadata:
    return decode(_metadata, content)


def decode_metadata_only(body: bytes) -> Metadata:
    """Returns the usage in a body whose other content cannot be read. The result is empty if the
    usage cannot be read either."""
    try:
        return decode_whole(_metadata, body)
    except MalformedAnswer:
        return Metadata()
