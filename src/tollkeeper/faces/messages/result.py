"""The Messages result of an answer. Streams use its beginning and usage, too."""

from dataclasses import dataclass, field

import msgspec

from tollkeeper.core.inference import Batch, Call, Delta
from tollkeeper.core.prompt import FreeObject, decode_arguments
from tollkeeper.core.usage import Usage
from tollkeeper.faces.messages.blocks import TEXT, THINKING, Blocks
from tollkeeper.faces.messages.call import PreparedMessage
from tollkeeper.faces.wire import messages as wire

_SERVICE_TIERS = frozenset({"standard", "priority", "batch"})
# Wraps arguments that aren't a JSON object, so that no client runs the tool with them.
_INVALID_ARGUMENTS = "INVALID_JSON"


def new_message(call: Call, usage: Usage) -> wire.Message:
    return wire.Message(
        id=f"msg_{call.request_id.replace('-', '')}",
        model=call.model.id,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=usage_view(usage),
    )


def usage_view(usage: Usage) -> FreeObject:
    """Here, `input_tokens` doesn't include tokens read from the cache or written to it."""
    short, long = usage.cache_write_tokens, usage.cache_write_1h_tokens
    searches = usage.web_searches
    tier = usage.service_tier
    return {
        "input_tokens": usage.uncached_tokens,
        "cache_creation_input_tokens": short + long,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": short,
            "ephemeral_1h_input_tokens": long,
        },
        "output_tokens": usage.completion_tokens,
        "server_tool_use": {"web_search_requests": searches} if searches else None,
        "service_tier": tier if tier in _SERVICE_TIERS else None,
    }


@dataclass(slots=True)
class _Block:
    # From the event that began the block. Signature and citations come later.
    fields: FreeObject
    pieces: list[str] = field(default_factory=list)

    def extend(self, delta: FreeObject) -> None:
        match delta["type"]:
            case "signature_delta":
                self.fields["signature"] = delta["signature"]
            case "citations_delta":
                self.fields.setdefault("citations", []).append(delta["citation"])
            case "text_delta":
                self.pieces.append(delta["text"])
            case "thinking_delta":
                self.pieces.append(delta["thinking"])
            case _:
                self.pieces.append(delta["partial_json"])

    def view(self) -> FreeObject:
        whole = "".join(self.pieces)
        match self.fields["type"]:
            case "text":
                return {**self.fields, TEXT: whole}
            case "thinking":
                return {**self.fields, THINKING: whole}
            case "tool_use" | "server_tool_use" if whole.strip():
                if decode_arguments(whole) is None:
                    return {**self.fields, "input": {_INVALID_ARGUMENTS: whole}}
                return {**self.fields, "input": msgspec.Raw(whole.encode())}
        return self.fields


class MessageAssembly:
    """The sink if the answer isn't streamed. Builds the message from a stream's events."""

    def __init__(self, prepared: PreparedMessage) -> None:
        self._call = prepared.call
        self._blocks = Blocks(prepared)
        self._content: list[_Block] = []

    async def take(self, batch: Batch) -> None:
        for event in batch:
            if isinstance(event, Delta):
                for event_object in self._blocks.add(event):
                    self._read(event_object)

    def held_back(self) -> None:
        """The client gets nothing before the answer is complete anyway."""

    def text_writer(self) -> None:
        """The text arrives in `take` instead."""

    def message(self, usage: Usage) -> wire.Message:
        return msgspec.structs.replace(
            new_message(self._call, usage),
            content=[block.view() for block in self._content],
            stop_reason=self._blocks.stop_reason,
            stop_sequence=self._blocks.stop_sequence,
        )

    def _read(self, event_object: FreeObject) -> None:
        match event_object["type"]:
            case "content_block_start":
                self._content.append(_Block(dict(event_object["content_block"])))
            case "content_block_delta":
                self._content[event_object["index"]].extend(event_object["delta"])
