"""Assembles an answer's output items from its events. A stream's listener gets every change."""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from tollkeeper.calls.reasoning_seal import Sealer
from tollkeeper.core.inference import Annotation, Delta, Finish, ToolCallPiece
from tollkeeper.core.runtime.large_requests import read_value
from tollkeeper.faces.answer_blocks import AnswerBlocks
from tollkeeper.faces.responses.namespaces import FlatNames
from tollkeeper.faces.wire import response_object as wire

_NO_NAMES: FlatNames = {}
_IMAGE_DATA_URL = re.compile(r"data:image/([\w.+-]+)[^,]*;base64,", re.IGNORECASE)


class _TopLogprob(msgspec.Struct, gc=False):
    """From the chat protocol, where `bytes` may be missing."""

    token: str
    logprob: float
    bytes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.bytes is None:
            self.bytes = list(self.token.encode())


class _TokenLogprob(_TopLogprob, gc=False):
    """From there too, where `top_logprobs` may be missing as well."""

    top_logprobs: list[_TopLogprob] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.top_logprobs = self.top_logprobs or []


class _ChatLogprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


_logprobs = msgspec.json.Decoder(_ChatLogprobs)
_token_logprob = msgspec.json.Decoder(_TokenLogprob)
_encode = msgspec.json.Encoder().encode


class TextKind(StrEnum):
    """What arrives piece by piece. The values are part of event names."""

    TEXT = "output_text"
    REFUSAL = "refusal"
    REASONING = "reasoning_text"
    ARGUMENTS = "function_call_arguments"


@dataclass(slots=True)
class OpenText:
    kind: TextKind
    item_id: str
    output_index: int
    content_index: int | None
    # Where it starts in the whole answer's text.
    start: int = 0
    pieces: list[str] = field(default_factory=list)
    annotations: list[wire.FlatUrlCitation] = field(default_factory=list)
    # Encoded `wire.TokenLogprob`s, because a stream writes each several times.
    logprobs: list[Any] = field(default_factory=list)
    # The position as JSON, from the listener at the first piece.
    encoded_place: bytes | None = None

    @property
    def whole(self) -> str:
        return "".join(self.pieces)

    def part(self) -> wire.OutputPart:
        if self.kind is TextKind.TEXT:
            return wire.OutputText(
                text=self.whole, annotations=self.annotations, logprobs=self.logprobs
            )
        if self.kind is TextKind.REFUSAL:
            return wire.OutputRefusal(refusal=self.whole)
        return wire.ReasoningText(text=self.whole)


class ItemKind(StrEnum):
    """The prefix of an item's id."""

    MESSAGE = "msg"
    REASONING = "rs"
    CALL = "fc"
    IMAGE = "ig"


@dataclass(slots=True)
class Item:
    kind: ItemKind
    id: str
    index: int
    parts: list[OpenText] = field(default_factory=list)
    status: wire.ItemStatus = "in_progress"
    # For function calls only, up to `flat_name`.
    call_id: str = ""
    name: str = ""
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    # As the model wrote it, with the namespace if there is one.
    flat_name: str = ""
    # For reasoning only: what only the backend can read.
    sealed_by_backend: tuple[str, ...] = ()
    # For reasoning only: the text and `sealed_by_backend`, when the item has ended.
    sealed: str | msgspec.UnsetType = msgspec.UNSET
    # For images only, in base64.
    image: str | None = None
    image_format: str | None = None

    @property
    def whole(self) -> str:
        return self.parts[-1].whole


class Listener:
    """Gets every change of the output, in order. This one's for answers that aren't streamed."""

    def event(self, name: str, fields: dict[str, Any]) -> None: ...

    def piece(self, open_text: OpenText, text: str, logprobs: list[msgspec.Raw]) -> None: ...


class Output(AnswerBlocks[Item]):
    def __init__(
        self,
        request_id: str,
        listener: Listener,
        *,
        owner: Hashable,
        logprobs: bool = False,
        seal: Sealer | None = None,
        flat_names: FlatNames = _NO_NAMES,
    ) -> None:
        super().__init__()
        self._suffix = request_id.replace("-", "")
        self._listener = listener
        self._owner = owner
        self._includes_logprobs = logprobs
        self._seal = seal
        self._flat_names = flat_names
        self._items: list[Item] = []
        # Of all messages, without refusals.
        self._texts: list[OpenText] = []
        self._text_length = 0
        self.finish: str | None = None

    def dismiss_listener(self) -> None:
        """The listener and the output refer to each other, a cycle that would stay until the next
        GC."""
        self._listener = Listener()

    async def add(self, delta: Delta) -> None:
        tokens: list[msgspec.Raw] = []
        if delta.logprobs is not None and self._includes_logprobs:
            # The call may be cancelled during the wait, so the output only changes afterwards.
            tokens = await read_value(self._owner, _flat_logprobs, delta.logprobs)
        if delta.reasoning:
            self._append(self._item_for(TextKind.REASONING), delta.reasoning)
        if delta.sealed_reasoning and self._seal is not None:
            item = self._item_for(TextKind.REASONING)
            item.sealed_by_backend += (delta.sealed_reasoning,)
        if delta.text or tokens:
            self._add_text(delta.text or "", tokens)
        for annotation in delta.annotations:
            self._annotate(annotation)
        for address in delta.images:
            self._add_image(address)
        if delta.refusal:
            self._append(self._item_for(TextKind.REFUSAL), delta.refusal)
        for piece in delta.tool_calls:
            self._add_call(piece)
        if delta.function_call is not None:
            called = delta.function_call
            self._add_call(ToolCallPiece(0, None, called.name, called.arguments))
        if delta.finish is not None:
            self._finish(delta.finish)

    def items(self) -> list[wire.OutputItem]:
        """An item that hasn't ended gets the status `incomplete`."""
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

    def _item_for(self, kind: TextKind) -> Item:
        """Texts and refusals can share a message, but reasoning is an item of its own."""
        item = self._current
        open_kind = None if item is None else item.parts[-1].kind
        if item is not None and open_kind is kind:
            return item
        if item is not None and TextKind.REASONING not in (kind, open_kind):
            self._close_part(item.parts[-1])
        else:
            is_reasoning = kind is TextKind.REASONING
            item = self._begin(
                self._new_item(ItemKind.REASONING if is_reasoning else ItemKind.MESSAGE)
            )
            self._current = item
        self._begin_part(item, kind)
        return item

    def _begin_part(self, item: Item, kind: TextKind) -> None:
        open_text = OpenText(kind, item.id, item.index, len(item.parts), self._text_length)
        item.parts.append(open_text)
        if kind is TextKind.TEXT:
            self._texts.append(open_text)
        place = _place(open_text)
        self._listener.event("response.content_part.added", {**place, "part": open_text.part()})

    def _append(self, item: Item, text: str) -> None:
        open_text = item.parts[-1]
        open_text.pieces.append(text)
        self._listener.piece(open_text, text, [])

    def _add_text(self, text: str, tokens: list[msgspec.Raw]) -> None:
        if not text and (
            self._current is None or self._current.parts[-1].kind is not TextKind.TEXT
        ):
            return  # only texts have a field for log-probabilities; calls and reasoning do not
        open_text = self._item_for(TextKind.TEXT).parts[-1]
        open_text.pieces.append(text)
        self._text_length += len(text)
        open_text.logprobs += tokens
        self._listener.piece(open_text, text, tokens)

    def _annotate(self, annotation: Annotation) -> None:
        """The citation's text may have ended, because some backends send all of them at the end.
        Positions count from the beginning of that text."""
        if not self._texts:
            self._item_for(TextKind.TEXT)
        begun = (text for text in reversed(self._texts) if text.start <= annotation.start_index)
        open_text = next(begun, self._texts[0])
        citation = wire.FlatUrlCitation(
            url=annotation.url,
            title=annotation.title,
            start_index=annotation.start_index - open_text.start,
            end_index=annotation.end_index - open_text.start,
        )
        fields = {
            **_place(open_text),
            "annotation_index": len(open_text.annotations),
            "annotation": citation,
        }
        open_text.annotations.append(citation)
        self._listener.event("response.output_text.annotation.added", fields)

    # Images.

    def _add_image(self, address: str) -> None:
        """Arrives as a whole. The protocol doesn't allow a data URL's prefix, only its base64."""
        item = self._begin(self._new_item(ItemKind.IMAGE))
        data_url = _IMAGE_DATA_URL.match(address)
        item.image = address if data_url is None else address[data_url.end() :]
        item.image_format = None if data_url is None else data_url[1].lower()
        place = {"item_id": item.id, "output_index": item.index}
        self._listener.event("response.image_generation_call.completed", place)
        self._end(item)

    # Function calls.

    def _add_call(self, piece: ToolCallPiece) -> None:
        known = self._calls.get(piece.index)
        if known is not None and piece.name:
            self._extend_name(known, piece.name)
        super()._add_call(piece)

    def _new_call(self, piece: ToolCallPiece, index: int) -> Item:
        item = self._new_item(ItemKind.CALL)
        item.call_id = piece.id or f"call_{item.id}"
        self._extend_name(item, piece.name or "")
        item.parts.append(OpenText(TextKind.ARGUMENTS, item.id, index, None))
        return item

    def _extend_call(self, call: Item, arguments: str) -> None:
        self._append(call, arguments)

    def _extend_name(self, item: Item, piece: str) -> None:
        item.flat_name += piece
        qualified = self._flat_names.get(item.flat_name)
        if qualified is None:
            item.name = item.flat_name
        else:
            item.name, item.namespace = qualified.name, qualified.namespace

    # Items.

    def _new_item(self, kind: ItemKind) -> Item:
        at = len(self._items)
        item = Item(kind, f"{kind}_{self._suffix}{at:02x}", at)
        self._items.append(item)
        return item

    def _announce(self, block: Item) -> None:
        fields = {"output_index": block.index, "item": _view(block, "in_progress")}
        self._listener.event("response.output_item.added", fields)

    def _close_part(self, open_text: OpenText) -> None:
        place, whole = _place(open_text), open_text.whole
        if open_text.kind is TextKind.TEXT:
            fields = {**place, "text": whole, "logprobs": open_text.logprobs}
        elif open_text.kind is TextKind.REFUSAL:
            fields = {**place, "refusal": whole}
        else:
            fields = {**place, "text": whole}
        self._listener.event(f"response.{open_text.kind}.done", fields)
        self._listener.event("response.content_part.done", {**place, "part": open_text.part()})

    def _close(self, block: Item) -> None:
        """Only the last item can have the status `incomplete`."""
        item = block
        if item.kind is ItemKind.CALL:
            last = item.parts[-1]
            fields = {**_place(last), "name": item.name, "arguments": last.whole}
            self._listener.event("response.function_call_arguments.done", fields)
        elif item.kind is not ItemKind.IMAGE:
            self._close_part(item.parts[-1])
        if item.kind is ItemKind.REASONING and self._seal is not None:
            reasoning = "".join(open_text.whole for open_text in item.parts)
            item.sealed = self._seal(reasoning, item.sealed_by_backend)
        is_cut_off = item is self._items[-1] and self.incomplete_reason is not None
        item.status = "incomplete" if is_cut_off else "completed"
        fields = {"output_index": item.index, "item": _view(item, item.status)}
        self._listener.event("response.output_item.done", fields)

    def _finish(self, finish: str) -> None:
        self.finish = finish
        if not self._items:
            self._item_for(TextKind.TEXT)  # an answer without content becomes an empty message
        self._end_all()


def _view(item: Item, status: wire.ItemStatus) -> wire.OutputItem:
    if item.kind is ItemKind.CALL:
        return wire.OutputFunctionCall(
            id=item.id,
            status=status,
            call_id=item.call_id,
            name=item.name,
            arguments=item.parts[0].whole,
            namespace=item.namespace,
        )
    if item.kind is ItemKind.IMAGE:
        return wire.OutputImage(
            id=item.id, status=status, result=item.image, output_format=item.image_format
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


def _flat_logprobs(logprobs: msgspec.Raw) -> list[msgspec.Raw]:
    """From the chat protocol's format. Empty if they have another one."""
    try:
        tokens = _logprobs.decode(logprobs).content or []
        return [msgspec.Raw(_encode(_token_logprob.decode(token))) for token in tokens]
    except ValueError:
        return []
