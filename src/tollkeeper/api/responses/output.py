"""The output items of one Responses answer, put together from the events of its call.

An item opens with its first piece and closes when something else begins: text and reasoning at
once, a function call as soon as its arguments are whole, because calls may grow side by side.
Whoever wants to tell the story of it listens; the items are the same either way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from tollkeeper.api.wire import response_object as wire
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import Annotation, Delta, Finish, ToolCallPiece

_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: "list[_ChatLogprob] | None" = None


class _ChatLogprobs(msgspec.Struct):
    content: list[_ChatLogprob] | None = None


_logprobs = msgspec.json.Decoder(_ChatLogprobs)


class Kind(StrEnum):
    """What grows: the content of a message, a chain of thought, the arguments of a call."""

    TEXT = "output_text"
    REFUSAL = "refusal"
    REASONING = "reasoning_text"
    ARGUMENTS = "function_call_arguments"


@dataclass(slots=True)
class OpenText:
    """One text that grows piece by piece, and its place in the output."""

    kind: Kind
    item_id: str
    output_index: int
    content_index: int | None
    pieces: list[str] = field(default_factory=list)
    annotations: list[wire.FlatUrlCitation] = field(default_factory=list)
    logprobs: list[wire.TokenLogprob] = field(default_factory=list)
    # For the listener: the place, encoded once.
    encoded_place: bytes | None = None

    @property
    def whole(self) -> str:
        return "".join(self.pieces)

    def part(self) -> wire.OutputPart:
        if self.kind is Kind.TEXT:
            return wire.OutputText(
                text=self.whole, annotations=self.annotations, logprobs=self.logprobs
            )
        if self.kind is Kind.REFUSAL:
            return wire.OutputRefusal(refusal=self.whole)
        return wire.ReasoningText(text=self.whole)


class ItemKind(StrEnum):
    """What an item is, and how its id begins."""

    MESSAGE = "msg"
    REASONING = "rs"
    CALL = "fc"


@dataclass(slots=True)
class Item:
    kind: ItemKind
    id: str
    output_index: int
    parts: list[OpenText] = field(default_factory=list)
    status: wire.ItemStatus = "in_progress"
    # Of a function call only.
    call_id: str = ""
    name: str = ""
    # Of reasoning only: what its backend alone can read, and all of it, once it is closed.
    sealed_by_backend: tuple[str, ...] = ()
    sealed: str | msgspec.UnsetType = msgspec.UNSET


class Listener(Protocol):
    """Hears how the output comes about."""

    def event(self, name: str, fields: dict[str, Any]) -> None: ...

    def piece(self, open_text: OpenText, text: str, logprobs: list[wire.TokenLogprob]) -> None: ...


class NoListener:
    """A listener that keeps nothing."""

    def event(self, name: str, fields: dict[str, Any]) -> None:
        pass

    def piece(self, open_text: OpenText, text: str, logprobs: list[wire.TokenLogprob]) -> None:
        pass


class Output:
    def __init__(
        self,
        request_id: str,
        listener: Listener,
        *,
        logprobs: bool = False,
        seal: Callable[[str, tuple[str, ...]], str] | None = None,
    ) -> None:
        self._suffix = request_id.replace("-", "")
        self._listener = listener
        self._includes_logprobs = logprobs
        self._seal = seal
        self._items: list[Item] = []
        # What text goes into until something else begins.
        self._open: OpenText | None = None
        self._calls: dict[int, Item] = {}
        self._last_call: Item | None = None
        self.finish: str | None = None

    def add(self, delta: Delta) -> None:
        if delta.reasoning:
            self._grow(self._opened(Kind.REASONING), delta.reasoning)
        if delta.sealed_reasoning and self._seal is not None:
            item = self._items[self._opened(Kind.REASONING).output_index]
            item.sealed_by_backend += (delta.sealed_reasoning,)
        if delta.text or delta.logprobs is not None:
            self._add_text(delta.text or "", delta.logprobs)
        for annotation in delta.annotations:
            self._annotate(annotation)
        if delta.refusal:
            self._grow(self._opened(Kind.REFUSAL), delta.refusal)
        for piece in delta.tool_calls:
            self._add_call(piece)
        if delta.function_call is not None:
            called = delta.function_call
            self._add_call(ToolCallPiece(0, None, called.name, called.arguments))
        if delta.finish is not None:
            self._end(delta.finish)

    def items(self) -> list[wire.OutputItem]:
        """What there is so far; what is still open counts as incomplete."""
        return [
            _view(item, "incomplete" if item.status == "in_progress" else item.status)
            for item in self._items
        ]

    @property
    def incomplete_reason(self) -> wire.IncompleteDetails | None:
        if self.finish == Finish.LENGTH:
            return wire.IncompleteDetails(reason="max_output_tokens")
        if self.finish == Finish.CONTENT_FILTER:
            return wire.IncompleteDetails(reason="content_filter")
        return None

    # Text, refusals, reasoning.

    def _opened(self, kind: Kind) -> OpenText:
        open_ = self._open
        if open_ is not None and open_.kind is kind:
            return open_
        if open_ is not None and Kind.REASONING not in (kind, open_.kind):
            # A message may hold texts and refusals; reasoning is an item of its own.
            self._close_part(open_)
            item = self._items[open_.output_index]
        else:
            self._close_what_can_be()
            reasons = kind is Kind.REASONING
            item = self._begin_item(ItemKind.REASONING if reasons else ItemKind.MESSAGE)
        self._open = self._begin_part(item, kind)
        return self._open

    def _begin_part(self, item: Item, kind: Kind) -> OpenText:
        open_text = OpenText(kind, item.id, item.output_index, len(item.parts))
        item.parts.append(open_text)
        place = _place(open_text)
        self._listener.event("response.content_part.added", {**place, "part": open_text.part()})
        return open_text

    def _grow(self, open_text: OpenText, text: str) -> None:
        open_text.pieces.append(text)
        self._listener.piece(open_text, text, [])

    def _add_text(self, text: str, logprobs: msgspec.Raw | None) -> None:
        found = []
        if logprobs is not None and self._includes_logprobs:
            found = _flat_logprobs(logprobs)
        if text:
            open_text = self._opened(Kind.TEXT)
        elif found and self._open is not None and self._open.kind is Kind.TEXT:
            open_text = self._open
        else:
            return  # The probabilities of a call's tokens, or of reasoning, have no place here.
        open_text.pieces.append(text)
        open_text.logprobs += found
        self._listener.piece(open_text, text, found)

    def _annotate(self, annotation: Annotation) -> None:
        open_text = self._opened(Kind.TEXT)
        found = wire.FlatUrlCitation(
            url=annotation.url,
            title=annotation.title,
            start_index=annotation.start_index,
            end_index=annotation.end_index,
        )
        fields = {
            **_place(open_text),
            "annotation_index": len(open_text.annotations),
            "annotation": found,
        }
        open_text.annotations.append(found)
        self._listener.event("response.output_text.annotation.added", fields)

    # Function calls.

    def _add_call(self, piece: ToolCallPiece) -> None:
        item = self._calls.get(piece.index)
        if item is None:
            self._close_what_can_be()
            item = self._begin_call(piece)
        else:
            item.name += piece.name or ""
        if item.status != "in_progress":
            if piece.arguments.strip():
                raise BackendFailed("The backend went on with a call that was complete.")
            return
        if piece.arguments:
            self._grow(item.parts[0], piece.arguments)
        self._last_call = item

    def _begin_call(self, piece: ToolCallPiece) -> Item:
        item = self._new_item(ItemKind.CALL)
        item.call_id = piece.id or f"call_{item.id}"
        item.name = piece.name or ""
        item.parts.append(OpenText(Kind.ARGUMENTS, item.id, item.output_index, None))
        self._calls[piece.index] = item
        self._tell_of(item)
        return item

    # Items.

    def _new_item(self, kind: ItemKind) -> Item:
        at = len(self._items)
        item = Item(kind, f"{kind}_{self._suffix}{at:02x}", at)
        self._items.append(item)
        return item

    def _begin_item(self, kind: ItemKind) -> Item:
        item = self._new_item(kind)
        self._tell_of(item)
        return item

    def _tell_of(self, item: Item) -> None:
        fields = {"output_index": item.output_index, "item": _view(item, "in_progress")}
        self._listener.event("response.output_item.added", fields)

    def _close_what_can_be(self) -> None:
        """Something else begins: text is over, and so is the last call, if its arguments are a
        whole object and cannot grow any more."""
        if self._open is not None:
            self._close_part(self._open)
            self._close_item(self._items[self._open.output_index], "completed")
            self._open = None
        call, self._last_call = self._last_call, None
        if call is not None and _is_whole(call.parts[0].whole):
            self._close_item(call, "completed")

    def _close_part(self, open_text: OpenText) -> None:
        place, whole = _place(open_text), open_text.whole
        if open_text.kind is Kind.TEXT:
            fields = {**place, "text": whole, "logprobs": open_text.logprobs}
        elif open_text.kind is Kind.REFUSAL:
            fields = {**place, "refusal": whole}
        else:
            fields = {**place, "text": whole}
        self._listener.event(f"response.{open_text.kind}.done", fields)
        self._listener.event("response.content_part.done", {**place, "part": open_text.part()})

    def _close_item(self, item: Item, status: wire.ItemStatus) -> None:
        last = item.parts[-1]
        if last.kind is Kind.ARGUMENTS:
            fields = {**_place(last), "name": item.name, "arguments": last.whole}
            self._listener.event("response.function_call_arguments.done", fields)
        if item.kind is ItemKind.REASONING and self._seal is not None:
            thought = "".join(open_text.whole for open_text in item.parts)
            item.sealed = self._seal(thought, item.sealed_by_backend)
        item.status = status
        fields = {"output_index": item.output_index, "item": _view(item, status)}
        self._listener.event("response.output_item.done", fields)

    def _end(self, finish: str) -> None:
        """Everything closes, in the order in which it began. Only the last item can be cut off."""
        self.finish = finish
        if not self._items:
            self._opened(Kind.TEXT)  # An empty answer is an empty message.
        if self._open is not None:
            self._close_part(self._open)
            self._open = None
        last = self._items[-1]
        for item in self._items:
            if item.status == "in_progress":
                cut_off = item is last and self.incomplete_reason is not None
                self._close_item(item, "incomplete" if cut_off else "completed")


def _view(item: Item, status: wire.ItemStatus) -> wire.OutputItem:
    if item.kind is ItemKind.CALL:
        return wire.OutputFunctionCall(
            id=item.id,
            status=status,
            call_id=item.call_id,
            name=item.name,
            arguments=item.parts[0].whole,
        )
    content: list[Any] = [open_text.part() for open_text in item.parts]
    if item.kind is ItemKind.REASONING:
        return wire.OutputReasoning(
            id=item.id, status=status, summary=[], content=content, encrypted_content=item.sealed
        )
    return wire.OutputMessage(id=item.id, status=status, role="assistant", content=content)


def _place(open_text: OpenText) -> dict[str, Any]:
    place: dict[str, Any] = {
        "item_id": open_text.item_id,
        "output_index": open_text.output_index,
    }
    if open_text.content_index is not None:
        place["content_index"] = open_text.content_index
    return place


def _is_whole(arguments: str) -> bool:
    try:
        _json_object.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def _flat_logprobs(logprobs: msgspec.Raw) -> list[wire.TokenLogprob]:
    """Chat's probabilities of the content's tokens; what a backend wrote otherwise has none."""
    try:
        found = _logprobs.decode(logprobs).content or []
    except msgspec.DecodeError:
        return []
    return [
        wire.TokenLogprob(
            token=token.token,
            logprob=token.logprob,
            bytes=_bytes(token),
            top_logprobs=[
                wire.TopLogprob(token=top.token, logprob=top.logprob, bytes=_bytes(top))
                for top in token.top_logprobs or ()
            ],
        )
        for token in found
    ]


def _bytes(token: _ChatLogprob) -> list[int]:
    return list(token.token.encode()) if token.bytes is None else token.bytes
