"""Turns an answer's events into Messages events, which begin, extend and end content blocks."""

from dataclasses import dataclass, field

import msgspec

from tollkeeper.core.inference import Annotation, Delta, Finish, ToolCallPiece
from tollkeeper.core.inline_content import read_address
from tollkeeper.core.prompt import SERVER_TOOL_USE, FreeObject, SearchBlock
from tollkeeper.faces.answer_blocks import AnswerBlocks
from tollkeeper.faces.messages.call import PreparedMessage

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
# By kind of block: the type of its delta events, and their field with the text.
_DELTA_FIELDS = {TEXT: ("text_delta", "text"), THINKING: ("thinking_delta", "thinking")}


@dataclass(slots=True)
class _Block:
    kind: str
    index: int
    fields: FreeObject
    # Of reasoning or a tool call's arguments. Pieces of text aren't stored.
    pieces: list[str] = field(default_factory=list)
    # For reasoning only: what only the backend can read.
    sealed: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


class Blocks(AnswerBlocks[_Block]):
    def __init__(self, prepared: PreparedMessage) -> None:
        super().__init__()
        # Lets the client send reasoning back in its next request.
        self._seal = prepared.seal
        self._hides_reasoning = prepared.hides_reasoning
        # For the ids of tool calls to which the backend gave none.
        self._suffix = prepared.call.request_id.replace("-", "")
        self._events: list[FreeObject] = []
        self._refused = False
        self.stop_reason = END_TURN
        self.stop_sequence: str | None = None

    def add(self, delta: Delta) -> list[FreeObject]:
        if not self._hides_reasoning:
            self._add_reasoning(delta.reasoning, delta.sealed_reasoning)
        if delta.text:
            self._extend(TEXT, delta.text)
        if delta.annotations:
            self._add_citations(delta.annotations)
        if delta.search_block is not None:
            self._add_search(delta.search_block)
        for address in delta.images:
            self._add_complete_block({"type": "image", "source": _image_source(address)})
        if delta.refusal:
            self._refused = True
            self._extend(TEXT, delta.refusal)
        for piece in delta.tool_calls:
            self._add_call(piece)
        if delta.finish is not None:
            self._finish(delta, delta.finish)
        events, self._events = self._events, []
        return events

    # Text and reasoning.

    def _extend(self, kind: str, text: str) -> _Block:
        block = self._current
        if block is None or block.kind != kind:
            block = self._begin(_Block(kind, self._count, _EMPTY_BLOCKS[kind]))
            self._current = block
        if text:
            if kind == THINKING:
                block.pieces.append(text)
            type_, name = _DELTA_FIELDS[kind]
            self._write_delta(block, {"type": type_, name: text})
        return block

    def _add_reasoning(self, text: str | None, sealed: str | None) -> None:
        """`sealed` is for the backend only. If a block with reasoning text is open, or `text` is an
        empty string, it's the text's signature and ends the block. Otherwise it's encrypted
        reasoning and becomes a block of its own."""
        if text or (sealed and text is not None):
            self._extend(THINKING, text)
        if not sealed:
            return
        block = self._current
        if block is not None and block.kind == THINKING:
            block.sealed = (sealed,)
            self._end(block)
        else:
            data = self._seal("", (sealed,))
            self._add_complete_block({"type": "redacted_thinking", "data": data})

    def _add_citations(self, annotations: tuple[Annotation, ...]) -> None:
        """They go to the open text block or a new one, and end it."""
        block = self._extend(TEXT, "")
        for annotation in annotations:
            citation = {
                "type": "web_search_result_location",
                "url": annotation.url,
                "title": annotation.title,
                "cited_text": "",
                "encrypted_index": "",
            }
            self._write_delta(block, {"type": "citations_delta", "citation": citation})
        self._end_finished()

    def _add_complete_block(self, fields: FreeObject) -> None:
        """For example an image."""
        self._end(self._begin(_Block(fields["type"], self._count, fields)))

    def _add_search(self, search: SearchBlock) -> None:
        """A search arrives like a tool call: its query is a delta."""
        if search.query is None:
            self._add_complete_block(search.written)
            return
        fields = {**search.written, "input": {}}
        block = self._begin(_Block(SERVER_TOOL_USE, self._count, fields))
        self._extend_call(block, msgspec.json.encode(search.query).decode())
        self._end(block)

    # Blocks.

    def _new_call(self, piece: ToolCallPiece, index: int) -> _Block:
        call_id = piece.id or f"toolu_{self._suffix}{index:02x}"
        fields = {"type": TOOL_USE, "id": call_id, "name": piece.name or "", "input": {}}
        return _Block(TOOL_USE, index, fields)

    def _announce(self, block: _Block) -> None:
        self._write("content_block_start", block, content_block=block.fields)

    def _extend_call(self, call: _Block, arguments: str) -> None:
        call.pieces.append(arguments)
        self._write_delta(call, {"type": "input_json_delta", "partial_json": arguments})

    def _close(self, block: _Block) -> None:
        if block.kind == THINKING:
            signature = self._seal(block.whole, block.sealed)
            self._write_delta(block, {"type": "signature_delta", "signature": signature})
        self._write("content_block_stop", block)

    def _finish(self, delta: Delta, finish: str) -> None:
        self._end_all()
        reason = delta.stop_reason or _STOP_REASONS.get(finish, END_TURN)
        if reason == END_TURN and self._refused:
            reason = REFUSAL
        elif reason == END_TURN and self._calls:
            reason = TOOL_USE
        self.stop_reason, self.stop_sequence = reason, delta.stop_sequence

    def _write_delta(self, block: _Block, delta: FreeObject) -> None:
        self._write("content_block_delta", block, delta=delta)

    def _write(self, name: str, block: _Block, **fields: FreeObject) -> None:
        self._events.append({"type": name, "index": block.index, **fields})


def _image_source(address: str) -> FreeObject:
    content = read_address(address)
    if content is None or not content.media_type.startswith("image/"):
        return {"type": "url", "url": address}
    return {"type": "base64", "media_type": content.media_type, "data": content.base64}
