"""Converts a Responses answer, streamed or not, to the gateway's events. Does no I/O.

An answer consists of output items: messages, tool calls and reasoning. A stream is malformed if it
ends without a result, if a text continues after its end, or if the answer is longer than allowed. A
stream contains each text several times: in deltas, then as a whole in `done` events, and in the
result at the end. The reader emits a whole text only if it has emitted no delta of this text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

import msgspec

from tollkeeper.backends.answer_json import (
    MalformedAnswer,
    decode_any,
    decode_usage_only,
    error_record,
    value_or_none,
)
from tollkeeper.backends.event_reader import EventReader
from tollkeeper.backends.responses import result as records
from tollkeeper.backends.responses.reasoning import sealed_item
from tollkeeper.backends.responses.result import TextKind
from tollkeeper.backends.responses.usage import read_responses_usage
from tollkeeper.backends.usage_reports import report_in, usage_means_charge
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.inference import Call, Delta, Finish, UsageReport

_DONE = b"[DONE]"
# Even an item with a single token has several records without text: the item and its part are each
# added and done.
_EMPTY_RECORDS_PER_TOKEN_MAX = 8
# The kinds of text in a message, whose parts share one row of indexes.
_MESSAGE_KINDS = (TextKind.TEXT, TextKind.REFUSAL)
# Separates the parts of a reasoning summary. Each part is a paragraph.
_PARAGRAPH_BREAK = "\n\n"


@dataclass(slots=True)
class _Item:
    """Records which content of one output item has been emitted."""

    # The texts that have begun, by kind and index. True if the text has ended.
    texts: dict[tuple[TextKind, int], bool] = field(default_factory=dict)
    # For each part with text, the position in the text of the whole answer at which the part starts.
    text_starts: dict[int, int] = field(default_factory=dict)
    # The indexes of the parts whose annotations have been emitted.
    annotated: set[int] = field(default_factory=set)
    # If the item is a tool call, its index among the answer's tool calls; otherwise None.
    call_index: int | None = None
    # Whether the item is a call of a custom tool.
    is_custom: bool = False
    # The kind of reasoning that came first: REASONING or SUMMARY. The other kind is not emitted.
    reasoning_kind: TextKind | None = None
    # Whether the encrypted reasoning has been emitted.
    sealed: bool = False
    ended: bool = False


class ResponsesAnswer(EventReader):
    """Holds the state of one answer. The answer has one choice, because the protocol has no field
    for several."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(
            call, secrets=secrets, empty_records_per_token=_EMPTY_RECORDS_PER_TOKEN_MAX
        )
        self._items: dict[int | str, _Item] = {}
        self._items_by_call_id: dict[str, _Item] = {}
        self._emitted_kinds: set[TextKind] = set()
        self._text_length = 0
        # The failure that an `error` event reported. The reader still waits for the result, because
        # the result may contain usage.
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
        """Ends the answer with the failure of an earlier `error` event, or else with this failure."""
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

    # Texts: deltas and complete texts.

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
        """Emits the text, unless deltas of the text were emitted before. Marks the text as ended."""
        if kind is TextKind.ARGUMENTS and item.call_index is None:
            # The call has not begun. The `done` event of the item contains its name and repeats the
            # arguments.
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

    # Items.

    def _item(self, event: records.StreamEvent, record: records.Item | None = None) -> _Item:
        """Returns the state of the item to which an event belongs. Finds the item by its index, or by
        its id if the event has no index. Creates the state of a new item."""
        key: int | str | None = event.output_index
        if event.output_index is None:
            key = event.item_id or (record.id if record is not None else None) or 0
        elif event.output_index < 0:
            raise MalformedAnswer("an item has a negative index")
        assert key is not None
        item = self._items.get(key)
        if item is None or (item.ended and event.type == records.ITEM_ADDED):
            # Some servers reuse the index of an ended item for the next item.
            item = self._items[key] = _Item()
        return item

    def _begin_item(self, event: records.StreamEvent) -> None:
        """Begins an item; if the item is a tool call, emits the beginning of the call. Ignores the
        content of the item, because the content comes again in deltas or at the end of the item."""
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
        """Emits the content of the item that was not emitted before."""
        if record.type == records.MESSAGE:
            for index, part in _by_stream_index(item, record.content or (), *_MESSAGE_KINDS):
                self._emit_part(item, index, part)
        elif record.type in records.CALLS:
            self._begin_call(item, record)
            arguments = record.arguments or record.input or ""
            self._emit_complete_text(item, TextKind.ARGUMENTS, 0, arguments)
        elif record.type == records.REASONING:
            # Only the first kind of reasoning is emitted. The text comes first here, because the
            # text is preferred to the summary.
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
        """Emits the content of the result that was not in the stream before. The items of the result
        cannot be matched with the items of the stream by index, because some servers number them
        differently. So messages are skipped if any text or refusal was emitted before, and the text of
        reasoning is skipped if any reasoning was emitted before. Tool calls are matched by their ids."""
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
        """Reports the searches of a failed result, unless the stream contained searches. The usage
        report of the result counts searches too, but a failed result may have no usage."""
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
        """Stores the failure that an `error` event reports. The answer does not end yet, because the
        result, which contains the usage, may follow."""
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
    """Returns the parts of a whole item with the index that each part has in the stream, which is
    usually its position in the item. Bedrock's streams count the texts of a message from 1, so the
    parts with text are matched by their order if the indexes of the stream do not fit."""
    streamed = sorted({index for kind, index in item.texts if kind in kinds})
    written = [position for position, part in enumerate(parts) if part.text_or_refusal]
    if not written or set(streamed) <= set(written):
        return iter(enumerate(parts))
    # Parts that were not in the stream get indexes that the stream did not use.
    indexes = chain(streamed, count(streamed[-1] + 1))
    return zip(indexes, (parts[position] for position in written), strict=False)


def _part_index(event: records.StreamEvent) -> int:
    return (event.content_index if event.summary_index is None else event.summary_index) or 0


def _status(result: records.Response, event_status: str) -> str:
    """Returns the status in the result if it is a final status, otherwise the status that the type of
    the event implies."""
    status = result.status
    return (
        status if status is not None and status in records.FINAL_EVENTS.values() else event_status
    )
