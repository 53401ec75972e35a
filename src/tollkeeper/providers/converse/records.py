"""Decodes Converse answers, whole or streamed. Tolerant: unknown types are ignored."""

from functools import partial
from typing import Any

import msgspec

from tollkeeper.providers.answer_json import ABSENT, decode, decode_whole, decoded_or

BLOCK_START = "contentBlockStart"
BLOCK_DELTA = "contentBlockDelta"
BLOCK_STOP = "contentBlockStop"
MESSAGE_STOP = "messageStop"
METADATA = "metadata"
EVENTS = frozenset({BLOCK_START, BLOCK_DELTA, BLOCK_STOP, MESSAGE_STOP, METADATA})
# A tool call that the provider itself executes.
SERVER_TOOL_USE = "server_tool_use"


class _Object(msgspec.Struct, gc=False, rename="camel"):
    pass


class ToolUse(_Object):
    tool_use_id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    # Most models send it only for server-side tools, some for the client's too.
    type: str | None = None


class Text(_Object):
    text: str | None = None
    signature: str | None = None


class ReasoningBlock(Text):
    """A stream's pieces have the text here, a whole answer in `reasoning_text`."""

    reasoning_text: Text | None = None
    redacted_content: str | None = None


class CitationsContent(_Object):
    content: list[Text] | None = None


class Block(_Object):
    """Or its beginning or a piece of it in a stream."""

    text: str | None = None
    tool_use: ToolUse | None = None
    reasoning_content: ReasoningBlock | None = None
    citations_content: CitationsContent | None = None


class Metadata(_Object):
    usage: msgspec.Raw = ABSENT
    service_tier: Any = None

    @property
    def tier(self) -> str | None:
        kind = self.service_tier.get("type") if isinstance(self.service_tier, dict) else None
        return kind if isinstance(kind, str) else None


class StreamEvent(Metadata):
    content_block_index: int = 0
    start: Block | None = None
    delta: Block | None = None
    stop_reason: str | None = None


class _Message(_Object):
    content: list[Block] | None = None


class _Output(_Object):
    message: _Message | None = None


class Answer(Metadata):
    """Not streamed."""

    output: _Output | None = None
    stop_reason: str | None = None
    # From a proxy, in place of an answer.
    error: msgspec.Raw = ABSENT

    @property
    def content(self) -> list[Block] | None:
        message = None if self.output is None else self.output.message
        return None if message is None else message.content


decode_answer = partial(decode_whole, msgspec.json.Decoder(Answer))
decode_event = partial(decode, msgspec.json.Decoder(StreamEvent))
decode_metadata_only = partial(decoded_or, Metadata(), msgspec.json.Decoder(Metadata))
