"""Turns the events of an answer into Messages events, which begin, extend and end content blocks.

A block begins with its first piece. A block with text or reasoning ends when another block begins. A
block with a tool call also ends then, but only if the arguments of the call are already a complete JSON
object, because a backend may send pieces of several tool calls alternately.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tollkeeper.api.messages.call import PreparedMessage
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import Annotation, Delta, Finish, ToolCallPiece
from tollkeeper.domain.inline_content import read_address
from tollkeeper.domain.prompt import (
    SERVER_TOOL_USE,
    FreeObject,
    SearchBlock,
    decode_arguments,
)

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"
END_TURN, REFUSAL = "end_turn", "refusal"
_STOP_REASONS: dict[str, str] = {
    Finish.STOP: END_TURN,
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: TOOL_USE,
    Finish.CONTENT_FILTER: REFUSAL,
}
_EMPTY_BLOCKS: dict[str, FreeObject] = {
    TEXT: {"type": TEXT, "text": ""},
    THINKING: {"type": THINKING, "thinking": "", "signature": ""},
}
# The type of a block's delta events, and the name of the field with the text.
_DELTA_FIELDS = {TEXT: ("text_delta", "text"), THINKING: ("thinking_delta", "thinking")}


@dataclass(slots=True)
class _Block:
    kind: str
    index: int
    # The pieces of reasoning or of a tool call's arguments. Pieces of text are not stored.
    pieces: list[str] = field(default_factory=list)
    # Only for tool calls. `Blocks._open` is the open block with text or reasoning.
    is_open: bool = True

    @property
    def joined(self) -> str:
        return "".join(self.pieces)


class Blocks:
    """Tracks the content blocks of one answer and the reason why the answer stopped."""

    def __init__(self, prepared: PreparedMessage) -> None:
        # Encrypts reasoning, so that the client can send it back in its next request.
        self._seal = prepared.seal
        self._hides_reasoning = prepared.hides_reasoning
        # A part of the ids of tool calls to which the backend gave no id.
        self._suffix = prepared.call.request_id.replace("-", "")
        self._count = 0
        # The block with text or reasoning that the next piece may extend.
        self._open: _Block | None = None
        self._calls: dict[int, _Block] = {}
        # The tool call that got the latest arguments, if no other block has begun since.
        self._last_call: _Block | None = None
        self._refused = False
        self.stop_reason = END_TURN
        self.stop_sequence: str | None = None

    def add(self, delta: Delta) -> Iterator[FreeObject]:
        """Yields the Messages events for one delta (a piece of the answer)."""
        if not self._hides_reasoning:
            yield from self._add_reasoning(delta.reasoning, delta.sealed_reasoning)
        if delta.text:
            yield from self._extend(TEXT, delta.text)
        if delta.annotations:
            yield from self._add_citations(delta.annotations)
        if delta.search_block is not None:
            yield from self._add_search(delta.search_block)
        for address in delta.images:
            yield from self._add_complete_block({"type": "image", "source": _image_source(address)})
        if delta.refusal:
            self._refused = True
            yield from self._extend(TEXT, delta.refusal)
        for piece in delta.tool_calls:
            yield from self._add_call(piece)
        if delta.finish is not None:
            yield from self._finish(delta, delta.finish)

    # Text and reasoning.

    def _extend(self, kind: str, text: str) -> Iterator[FreeObject]:
        block = self._open
        if block is None or block.kind != kind:
            yield from self._close_finished()
            block = self._open = self._new_block(kind)
            yield _start_event(block.index, _EMPTY_BLOCKS[kind])
        if text:
            if kind == THINKING:
                block.pieces.append(text)
            type_, name = _DELTA_FIELDS[kind]
            yield _delta_event(block.index, {"type": type_, name: text})

    def _add_reasoning(self, text: str | None, sealed: str | None) -> Iterator[FreeObject]:
        """Adds reasoning. `sealed` is a value that only the backend can read. If a block with reasoning
        text is open, or if `text` is an empty string, `sealed` is the signature of the text and ends the
        block. Otherwise `sealed` is encrypted reasoning and becomes a separate block."""
        if text or (sealed and text is not None):
            yield from self._extend(THINKING, text)
        if not sealed:
            return
        block = self._open
        if block is not None and block.kind == THINKING:
            self._open = None
            yield from self._close_reasoning(block, (sealed,))
        else:
            data = self._seal("", (sealed,))
            yield from self._add_complete_block({"type": "redacted_thinking", "data": data})

    def _close_reasoning(self, block: _Block, sealed: tuple[str, ...]) -> Iterator[FreeObject]:
        signature = self._seal(block.joined, sealed)
        yield _delta_event(block.index, {"type": "signature_delta", "signature": signature})
        yield _stop_event(block.index)

    def _add_citations(self, annotations: tuple[Annotation, ...]) -> Iterator[FreeObject]:
        """Adds citations to the open text block, or to a new text block. Then ends the block."""
        yield from self._extend(TEXT, "")
        assert self._open is not None
        for annotation in annotations:
            citation = {
                "type": "web_search_result_location",
                "url": annotation.url,
                "title": annotation.title,
                "cited_text": "",
                "encrypted_index": "",
            }
            yield _delta_event(self._open.index, {"type": "citations_delta", "citation": citation})
        yield from self._close_finished()

    def _add_complete_block(self, block: FreeObject) -> Iterator[FreeObject]:
        """Adds a block that arrives as a whole, for example an image."""
        yield from self._close_finished()
        index = self._new_block(str(block["type"])).index
        yield _start_event(index, block)
        yield _stop_event(index)

    def _add_search(self, search: SearchBlock) -> Iterator[FreeObject]:
        """Adds a search or its results. A search arrives like a tool call: its query is a delta."""
        if search.query is None:
            yield from self._add_complete_block(search.written)
            return
        yield from self._close_finished()
        index = self._new_block(SERVER_TOOL_USE).index
        yield _start_event(index, {**search.written, "input": {}})
        query = msgspec.json.encode(search.query).decode()
        yield _delta_event(index, {"type": "input_json_delta", "partial_json": query})
        yield _stop_event(index)

    # Tool calls.

    def _add_call(self, piece: ToolCallPiece) -> Iterator[FreeObject]:
        call = self._calls.get(piece.index)
        if call is None:
            yield from self._close_finished()
            call = self._calls[piece.index] = self._new_block(TOOL_USE)
            yield _start_event(
                call.index,
                {
                    "type": TOOL_USE,
                    "id": piece.id or f"toolu_{self._suffix}{call.index:02x}",
                    "name": piece.name or "",
                    "input": {},
                },
            )
        if not piece.arguments:
            return
        if not call.is_open:
            if piece.arguments.strip():
                raise BackendFailed("The backend added arguments to a complete tool call.")
            return
        call.pieces.append(piece.arguments)
        self._last_call = call
        delta = {"type": "input_json_delta", "partial_json": piece.arguments}
        yield _delta_event(call.index, delta)

    # Blocks.

    def _new_block(self, kind: str) -> _Block:
        block = _Block(kind, self._count)
        self._count += 1
        return block

    def _close_finished(self) -> Iterator[FreeObject]:
        """Called before another block begins. Ends the open block with text or reasoning, and the tool
        call that got the latest arguments, if these are complete."""
        block, self._open = self._open, None
        if block is not None and block.kind == THINKING:
            yield from self._close_reasoning(block, ())
        elif block is not None:
            yield _stop_event(block.index)
        call, self._last_call = self._last_call, None
        if call is not None and read_arguments(call.joined) is not None:
            call.is_open = False
            yield _stop_event(call.index)

    def _finish(self, delta: Delta, finish: str) -> Iterator[FreeObject]:
        yield from self._close_finished()
        for call in self._calls.values():
            if call.is_open:
                call.is_open = False
                yield _stop_event(call.index)
        reason = delta.stop_reason or _STOP_REASONS.get(finish, END_TURN)
        if reason == END_TURN and self._refused:
            reason = REFUSAL
        elif reason == END_TURN and self._calls:
            reason = TOOL_USE
        self.stop_reason, self.stop_sequence = reason, delta.stop_sequence


def read_arguments(arguments: str) -> msgspec.Raw | None:
    """Returns the arguments of a tool call unchanged, or None if they are not a JSON object or are
    nested too deeply."""
    return None if decode_arguments(arguments) is None else msgspec.Raw(arguments.encode())


def _image_source(address: str) -> FreeObject:
    content = read_address(address)
    if content is None or not content.media_type.startswith("image/"):
        return {"type": "url", "url": address}
    return {"type": "base64", "media_type": content.media_type, "data": content.base64}


def _start_event(index: int, block: FreeObject) -> FreeObject:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta_event(index: int, delta: FreeObject) -> FreeObject:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _stop_event(index: int) -> FreeObject:
    return {"type": "content_block_stop", "index": index}
