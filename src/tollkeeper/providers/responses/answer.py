"""Converts a Responses answer, streamed or not, to events. Does no I/O. A stream is malformed
without a result, if a text continues after its end, or if it's too long. It has each text several
times (deltas, `done` events and the result), so a whole text is emitted only if none of its deltas
was."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

import msgspec

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Call, Delta, Finish, UsageReport
from tollkeeper.providers.answer_json import (
    MalformedAnswer,
    decode_any,
    decode_usage_only,
    error_record,
    value_or_none,
)
from tollkeeper.providers.event_reader import EventReader
from tollkeeper.providers.responses import result as records
from tollkeeper.providers.responses.reasoning import sealed_item
from tollkeeper.providers.responses.result import TextKind
from tollkeeper.providers.responses.usage import read_responses_usage
from tollkeeper.providers.usage_reports import report_in, usage_means_charge

_DONE = b"[DONE]"
# Even an item of one token, and its part, are each added and done.
_EMPTY_RECORDS_PER_TOKEN_MAX = 8
# Parts of these share one row of indexes.
_MESSAGE_KINDS = (TextKind.TEXT, TextKind.REFUSAL)
# Each part of a reasoning summary is a paragraph.
_PARAGRAPH_BREAK = "\n\n"


@dataclass(slots=True)
class _Item:
    """What has been emitted of one output item."""

    # By kind and index. True if ended.
    texts: dict[tuple[TextKind, int], bool] = field(default_factory=dict)
    # By part: where it starts in the whole answer's text.
    text_starts: dict[int, int] = field(default_factory=dict)
    # Parts whose annotations have been emitted.
    annotated: set[int] = field(default_factory=set)
    # Among the answer's tool calls.
    call_index: int | None = None
    is_custom: bool = False
    # REASONING or SUMMARY, whichever came first. The other isn't emitted.
    reasoning_kind: TextKind | None = None
    sealed: bool = False
    ended: bool = False


class ResponsesAnswer(EventReader):
    """The protocol has no field for several choices."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(
            call, secrets=secrets, empty_records_per_token=_EMPTY_RECORDS_PER_TOKEN_MAX
        )
        self._items: dict[int | str, _Item] = {}
        self._items_by_call_id: dict[str, _Item] = {}
        self._emitted_kinds: set[TextKind] = set()
        self._text_length = 0
        # Of an `error` event. The result, maybe with usage, is still awaited.
        self._error_event: TollkeeperError | None = None

    @staticmethod
    def usage_in(body: bytes) -> UsageReport | None:
        found = decode_usage_only(body)
        return report_in(found.usage, partial(read_responses_usage, service_tier=found.tier))

    def _read_body(self, body: bytes) -> None:
        result = records.decode_result(body)
        if result.output is None and value_or_none(result.error) is None:
            raise MalformedAnswer("it has no output")
        self._open(records.used_tier(result))
        self._end(result, result.status or "completed")

    def fail(self, failure: TollkeeperError) -> None:
        """Or with that of an earlier `error` event."""
        super().fail(self._error_event or failure)

    def _read_record(self, payload: bytes) -> None:
        if payload.startswith(_DONE):
            raise MalformedAnswer("it ended before the answer was complete")
        event = records.decode_event(payload)
        if event is None:
            return
        if not self._opened:
            self._open(records.used_tier(records.decode_response(event.response)))
        type_ = event.type or ""
        if type_ in records.DELTA_EVENTS:
            self._read_delta(event, records.DELTA_EVENTS[type_])
        elif type_ in records.DONE_EVENTS:
            kind = records.DONE_EVENTS[type_]
            text = event.text or event.refusal or event.arguments or event.input or ""
            self._emit_complete_text(self._item(event), kind, _text_index(event, kind), text, event)
        elif type_ in records.PART_DONE_EVENTS:
            self._emit_part(self._item(event), _part_index(event), records.decode_part(event.part))
        elif type_ == records.ANNOTATION_ADDED:
            item, index = self._item(event), event.content_index or 0
            item.annotated.add(index)
            self._emit_annotations(item, index, [event.annotation])
        elif type_ == records.ITEM_ADDED:
            self._begin_item(event)
        elif type_ == records.ITEM_DONE:
            self._end_item(event)
        elif type_ in records.FINAL_EVENTS:
            result = records.decode_response(event.response)
            self._end(result, _status(result, records.FINAL_EVENTS[type_]))
        elif type_ == records.ERROR or value_or_none(event.error) is not None:
            self._read_error(event)

    def _read_delta(self, event: records.StreamEvent, kind: TextKind) -> None:
        item = self._item(event)
        index = _text_index(event, kind)
        if item.texts.get((kind, index)):
            raise MalformedAnswer("a text goes on after its end")
        self._emit_text(item, kind, index, event.delta or "", event)

    def _emit_complete_text(
        self,
        item: _Item,
        kind: TextKind,
        index: int,
        text: str,
        source: records.StreamEvent | records.Part | None = None,
    ) -> None:
        """Unless its deltas were emitted. Marks it as ended."""
        if kind is TextKind.ARGUMENTS and item.call_index is None:
            # The call hasn't begun. The item's `done` event has its name and repeats
            # the arguments.
            return
        if (kind, index) not in item.texts:
            self._emit_text(item, kind, index, text, source)
        item.texts[kind, index] = True

    def _emit_text(
        self,
        item: _Item,
        kind: TextKind,
        index: int,
        text: str,
        source: records.StreamEvent | records.Part | None,
    ) -> None:
        logprobs = None
        if kind is TextKind.TEXT and source is not None:
            logprobs = records.chat_logprobs(source.logprobs)
        if not text and logprobs is None:
            return
        begins = (kind, index) not in item.texts
        item.texts[kind, index] = False
        match kind:
            case TextKind.TEXT:
                item.text_starts.setdefault(index, self._text_length)
                self._text_length += len(text)
                self._emit(Delta(0, text or None, logprobs=logprobs))
            case TextKind.REFUSAL:
                self._emit(Delta(0, refusal=text))
            case TextKind.ARGUMENTS:
                if item.call_index is None:
                    raise MalformedAnswer("arguments came before their call")
                self._emit_call(item.call_index, arguments=text, is_custom=item.is_custom)
            case _:
                if item.reasoning_kind not in (None, kind):
                    return
                if begins and item.reasoning_kind is TextKind.SUMMARY:
                    text = _PARAGRAPH_BREAK + text
                item.reasoning_kind = kind
                self._emit(Delta(0, reasoning=text))
        self._emitted_kinds.add(kind)

    def _emit_part(self, item: _Item, index: int, part: records.Part) -> None:
        kind = records.PART_KINDS.get(part.type or "")
        if kind is None:
            return
        self._emit_complete_text(item, kind, index, part.text_or_refusal, part)
        if part.annotations and index not in item.annotated:
            item.annotated.add(index)
            self._emit_annotations(item, index, part.annotations)

    def _emit_annotations(
        self, item: _Item, index: int, annotations: Iterable[msgspec.Raw]
    ) -> None:
        start = item.text_starts.get(index, self._text_length)
        decoded = (records.decode_annotation(annotation, start) for annotation in annotations)
        known = tuple(annotation for annotation in decoded if annotation is not None)
        if known:
            self._emit(Delta(0, annotations=known))

    def _item(self, event: records.StreamEvent, record: records.Item | None = None) -> _Item:
        """By index, or by id if the event has none. Creates a new item's."""
        key: int | str | None = event.output_index
        if event.output_index is None:
            key = event.item_id or (record.id if record is not None else None) or 0
        elif event.output_index < 0:
            raise MalformedAnswer("an item has a negative index")
        assert key is not None
        item = self._items.get(key)
        if item is None or (item.ended and event.type == records.ITEM_ADDED):
            # Some servers reuse an ended item's index.
            item = self._items[key] = _Item()
        return item

    def _begin_item(self, event: records.StreamEvent) -> None:
        """Its content is ignored here: it comes again, in deltas or at the item's end."""
        record = records.decode_item(event.item)
        if record is not None:
            item = self._item(event, record)
            if record.type in records.CALLS:
                self._begin_call(item, record)

    def _end_item(self, event: records.StreamEvent) -> None:
        record = records.decode_item(event.item)
        if record is None:
            if self._asks_for_searches and records.is_search(event.item, ended=True):
                self._report_search()
        else:
            item = self._item(event, record)
            self._emit_item(item, record)
            item.ended = True

    def _begin_call(self, item: _Item, record: records.Item) -> None:
        if item.call_index is not None:
            return
        item.call_index = self._count_call()
        item.is_custom = record.type == records.CUSTOM_CALL
        id_ = record.call_id or record.id
        if not id_:
            raise MalformedAnswer("a call has no id")
        self._items_by_call_id[id_] = item
        self._emit_call(item.call_index, id_, record.name or "", is_custom=item.is_custom)

    def _emit_item(self, item: _Item, record: records.Item) -> None:
        """What wasn't emitted before."""
        if record.type == records.MESSAGE:
            for index, part in _by_stream_index(item, record.content or (), *_MESSAGE_KINDS):
                self._emit_part(item, index, part)
        elif record.type in records.CALLS:
            self._begin_call(item, record)
            arguments = record.arguments or record.input or ""
            self._emit_complete_text(item, TextKind.ARGUMENTS, 0, arguments)
        elif record.type == records.REASONING:
            # Only the first kind of reasoning is emitted. Text is preferred to the
            # summary.
            for kind, parts in (
                (TextKind.REASONING, record.content or ()),
                (TextKind.SUMMARY, record.summary or ()),
            ):
                for index, part in _by_stream_index(item, parts, kind):
                    self._emit_complete_text(item, kind, index, part.text_or_refusal)
            if record.encrypted_content and not item.sealed:
                item.sealed = True
                sealed = sealed_item(record.id, record.encrypted_content)
                self._emit(Delta(0, sealed_reasoning=sealed))

    def _emit_remaining(self, result: records.Response) -> None:
        """Some servers number the result's items differently from the stream's. So messages are
        skipped after any text or refusal, and reasoning's text after any reasoning; tool calls
        match by id."""
        emitted_kinds = frozenset(self._emitted_kinds)
        was_sealed_emitted = any(item.sealed for item in self._items.values())
        for raw in result.output or ():
            record = records.decode_item(raw)
            if record is None:
                continue
            if record.type in records.CALLS:
                item = self._items_by_call_id.get(record.call_id or record.id or "") or _Item()
                self._emit_item(item, record)
            elif record.type == records.REASONING:
                if emitted_kinds & {TextKind.REASONING, TextKind.SUMMARY}:
                    record.content = record.summary = None
                self._emit_item(_Item(sealed=was_sealed_emitted), record)
            elif not emitted_kinds & {TextKind.TEXT, TextKind.REFUSAL}:
                self._emit_item(_Item(), record)

    def _end(self, result: records.Response, status: str) -> None:
        error = error_record(result.error)
        failed = error is not None or status in ("failed", "cancelled")
        if not failed and status not in ("completed", "incomplete"):
            raise MalformedAnswer("the status of its result is not final")
        self._emit_remaining(result)
        report = records.usage_report(result, self._searches)
        if failed:
            self._report_searches_of(result)
            self._fail_with(error, report)
            return
        self._finish(self._finish_of(result, status))
        if report is not None:
            self._events.append(report)
        self.done = self._error_event is None
        self.failure = self._error_event

    def _finish_of(self, result: records.Response, status: str) -> Finish:
        if status == "incomplete":
            details = result.incomplete_details
            if details is not None and details.reason == "content_filter":
                return Finish.CONTENT_FILTER
            return Finish.LENGTH
        return Finish.TOOL_CALLS if self._call_count else Finish.STOP

    def _report_searches_of(self, failed: records.Response) -> None:
        """Unless the stream had searches. A failed result may have no usage to count them."""
        if self._asks_for_searches and not self._searches:
            for item in failed.output or ():
                if records.is_search(item, ended=False):
                    self._report_search()

    def _fail_with(self, error: object, report: UsageReport | None) -> None:
        failure = self._error_event or self._error_for(error)
        if report is not None and usage_means_charge(report):
            self.accepted = True
            self._events.append(report)
        self.failure = failure

    def _read_error(self, event: records.StreamEvent) -> None:
        """The answer doesn't end yet: the result with the usage may follow."""
        error = error_record(event.error)
        if error is None:
            code, message = value_or_none(event.code), value_or_none(event.message)
            error = {
                "code": None if code is None else decode_any(code),
                "message": None if message is None else decode_any(message),
            }
        if self._error_event is None:
            self._error_event = self._error_for(error)
            self.failing = True


def _text_index(event: records.StreamEvent, kind: TextKind) -> int:
    if kind is TextKind.ARGUMENTS:
        return 0
    return (event.summary_index if kind is TextKind.SUMMARY else event.content_index) or 0


def _by_stream_index(
    item: _Item, parts: Sequence[records.Part], *kinds: TextKind
) -> Iterator[tuple[int, records.Part]]:
    """With their stream's index, usually the position. Bedrock's streams count from 1, so if the
    indexes don't fit, parts with text match by order."""
    streamed = sorted({index for kind, index in item.texts if kind in kinds})
    written = [position for position, part in enumerate(parts) if part.text_or_refusal]
    if not written or set(streamed) <= set(written):
        return iter(enumerate(parts))
    indexes = chain(streamed, count(streamed[-1] + 1))
    return zip(indexes, (parts[position] for position in written), strict=False)


def _part_index(event: records.StreamEvent) -> int:
    return (event.content_index if event.summary_index is None else event.summary_index) or 0


def _status(result: records.Response, event_status: str) -> str:
    """If it's not final, the one that the event's type implies."""
    status = result.status
    return (
        status if status is not None and status in records.FINAL_EVENTS.values() else event_status
    )
