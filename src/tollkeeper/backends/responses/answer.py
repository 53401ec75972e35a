"""Reads the events of a streamed Responses answer, or its whole result, as events of ours.

The promises that it is held to: an answer is complete only when its result has come, nothing grows
after its end, and nothing is longer than its bound allows. What was told by pieces is not told
again by the wholes that follow them; what only a whole tells of is told by it. Pure: bytes in,
events out, no connection.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from tollkeeper.backends.answer_json import (
    MalformedAnswer,
    anything,
    error_record,
    given,
    tells_of_use,
)
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.responses import result as wire
from tollkeeper.backends.responses.result import Family
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import (
    Call,
    Delta,
    Event,
    Finish,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)

_DONE = b"[DONE]"
# Pieces beyond the bound that are no sign of a runaway: the habit of some servers to cut a token's
# text in two.
_PIECES_PER_TOKEN_MAX = 2
# An item of a token or two has all these around it: added and done, of itself and of its part.
_EVENTS_PER_TOKEN_MAX = 8
_SLACK = 64
# Between the parts of a summary, each of which is a paragraph.
_PARAGRAPH = "\n\n"


@dataclass(slots=True)
class _Item:
    """What has been told of one output item."""

    # The texts that have begun, by kind and number, and whether they have ended.
    texts: dict[tuple[Family, int], bool] = field(default_factory=dict)
    annotated: set[int] = field(default_factory=set)
    # Of a function call: its number among the calls.
    call: int | None = None
    # Of reasoning: the text or the summary of it, whichever came first. Both would say it twice.
    thought: Family | None = None
    sealed: bool = False
    ended: bool = False


class ResponsesAnswer:
    """The state of one answer, which is one choice: the protocol has no more."""

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        self._secrets = secrets
        self._pieces_left = _PIECES_PER_TOKEN_MAX * call.output_tokens_max + _SLACK
        self._others_left = (
            call.model.context_length + _EVENTS_PER_TOKEN_MAX * call.output_tokens_max + _SLACK
        )
        # Who describes functions in the old way knows calls in the old way only.
        self._legacy = call.prompt.has_legacy_functions_only
        self._items: dict[int | str, _Item] = {}
        self._call_ids: dict[str, _Item] = {}
        self._calls = 0
        self._told: set[Family] = set()
        self._opened = False
        # An `error` event says why; the result that may follow it says what was used.
        self._announced: TollkeeperError | None = None
        self._events: list[Event] = []
        self.accepted = False
        self.failing = False
        self.done = False
        self.failure: TollkeeperError | None = None

    def read(self, payloads: Iterable[bytes]) -> list[Event]:
        try:
            for payload in payloads:
                if self.ended:
                    break
                self._read_record(payload)
        except MalformedAnswer as error:
            malformed = f"The backend's stream is malformed: {error}."
            self.fail(BackendFailed(malformed, charged=True))
        return self._taken()

    def read_result(self, result: wire.Response) -> list[Event]:
        """The events of an answer that came at once."""
        if result.output is None and given(result.error) is None:
            raise MalformedAnswer("it has no output")
        self._open(result)
        self._end(result, result.status or "completed")
        return self._taken()

    @property
    def ended(self) -> bool:
        return self.done or self.failure is not None

    def fail(self, failure: TollkeeperError) -> None:
        if not self.ended:
            self.failure = self._announced or failure

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _read_record(self, payload: bytes) -> None:
        if payload.startswith(_DONE):
            raise MalformedAnswer("it ended before the answer did")
        event = wire.decode_event(payload)
        told = len(self._events)
        if event is not None:
            if not self._opened:
                self._open(wire.decode_response(event.response))
                told += 1
            self._read_event(event)
        if len(self._events) == told:
            self._others_left -= 1
            if self._others_left < 0:
                raise MalformedAnswer("it goes on without saying anything")

    def _read_event(self, event: wire.StreamEvent) -> None:
        kind = event.type or ""
        if kind in wire.PIECES:
            self._read_piece(event, wire.PIECES[kind])
        elif kind in wire.WHOLES:
            family = wire.WHOLES[kind]
            words = event.text or event.refusal or event.arguments or ""
            self._tell_whole(self._item(event), family, _number(event, family), words, event)
        elif kind in wire.PART_DONE:
            self._tell_part(self._item(event), _part_number(event), wire.decode_part(event.part))
        elif kind == wire.ANNOTATION_ADDED:
            item, number = self._item(event), event.content_index or 0
            item.annotated.add(number)
            self._annotate([event.annotation])
        elif kind == wire.ITEM_ADDED:
            self._begin_item(event)
        elif kind == wire.ITEM_DONE:
            self._end_item(event)
        elif kind in wire.ENDS:
            result = wire.decode_response(event.response)
            self._end(result, _status(result, wire.ENDS[kind]))
        elif kind == wire.ERROR or given(event.error) is not None:
            self._announce(event)

    # Pieces and wholes.

    def _read_piece(self, event: wire.StreamEvent, family: Family) -> None:
        item = self._item(event)
        number = _number(event, family)
        if item.texts.get((family, number)):
            raise MalformedAnswer("a text goes on after its end")
        self._tell(item, family, number, event.delta or "", event)

    def _tell_whole(
        self,
        item: _Item,
        family: Family,
        number: int,
        words: str,
        source: wire.StreamEvent | wire.Part | None = None,
    ) -> None:
        """Tells a text that is complete, unless its pieces have."""
        if family is Family.ARGUMENTS and item.call is None:
            return  # Whose arguments they are comes with the end of the item.
        if (family, number) not in item.texts:
            self._tell(item, family, number, words, source)
        item.texts[family, number] = True

    def _tell(
        self,
        item: _Item,
        family: Family,
        number: int,
        words: str,
        source: wire.StreamEvent | wire.Part | None,
    ) -> None:
        logprobs = None
        if family is Family.TEXT and source is not None:
            logprobs = wire.chat_logprobs(source.logprobs)
        if not words and logprobs is None:
            return
        begins = (family, number) not in item.texts
        item.texts[family, number] = False
        match family:
            case Family.TEXT:
                self._add(Delta(0, words or None, logprobs=logprobs))
            case Family.REFUSAL:
                self._add(Delta(0, refusal=words))
            case Family.ARGUMENTS:
                if item.call is None:
                    raise MalformedAnswer("arguments came before their call")
                self._add(self._called(item.call, arguments=words))
            case _:
                if item.thought not in (None, family):
                    return
                if begins and item.thought is Family.SUMMARY:
                    words = _PARAGRAPH + words
                item.thought = family
                self._add(Delta(0, reasoning=words))
        self._told.add(family)

    def _tell_part(self, item: _Item, number: int, part: wire.Part) -> None:
        family = wire.PARTS.get(part.type or "")
        if family is None:
            return
        self._tell_whole(item, family, number, part.words, part)
        if part.annotations and number not in item.annotated:
            item.annotated.add(number)
            self._annotate(part.annotations)

    def _annotate(self, annotations: Iterable[msgspec.Raw]) -> None:
        found = (wire.annotation_of(annotation) for annotation in annotations)
        known = tuple(annotation for annotation in found if annotation is not None)
        if known:
            self._add(Delta(0, annotations=known))

    # Items.

    def _item(self, event: wire.StreamEvent, found: wire.Item | None = None) -> _Item:
        """The item that an event speaks of: by its place, or by its id where that is not said."""
        place: int | str | None = event.output_index
        if event.output_index is None:
            place = event.item_id or (found.id if found is not None else None) or 0
        elif event.output_index < 0:
            raise MalformedAnswer("an item has a negative index")
        assert place is not None
        item = self._items.get(place)
        if item is None or (item.ended and event.type == wire.ITEM_ADDED):
            # Some servers give the place of an item that has ended to the next one.
            item = self._items[place] = _Item()
        return item

    def _begin_item(self, event: wire.StreamEvent) -> None:
        """What it holds already will come in pieces, or with its end."""
        found = wire.decode_item(event.item)
        if found is not None:
            item = self._item(event, found)
            if found.type == wire.CALL:
                self._begin_call(item, found)

    def _end_item(self, event: wire.StreamEvent) -> None:
        found = wire.decode_item(event.item)
        if found is not None:
            item = self._item(event, found)
            self._tell_item(item, found)
            item.ended = True

    def _begin_call(self, item: _Item, found: wire.Item) -> None:
        if item.call is not None:
            return
        item.call = self._calls
        self._calls += 1
        if self._legacy and self._calls > 1:
            raise MalformedAnswer("it calls two functions at once")
        id_ = found.call_id or found.id
        if not id_:
            raise MalformedAnswer("a call has no id")
        self._call_ids[id_] = item
        self._add(self._called(item.call, id_, found.name or ""))

    def _called(
        self, number: int, id_: str | None = None, name: str | None = None, arguments: str = ""
    ) -> Delta:
        if self._legacy:
            return Delta(0, function_call=FunctionCallPiece(name, arguments))
        return Delta(0, tool_calls=(ToolCallPiece(number, id_, name, arguments),))

    def _tell_item(self, item: _Item, found: wire.Item) -> None:
        """Tells what an item holds that nothing before has told."""
        if found.type == wire.MESSAGE:
            for number, part in enumerate(found.content or ()):
                self._tell_part(item, number, part)
        elif found.type == wire.CALL:
            self._begin_call(item, found)
            self._tell_whole(item, Family.ARGUMENTS, 0, found.arguments or "")
        elif found.type == wire.REASONING:
            # Kept by its backend in its own words, and in ours as text, or else as a summary.
            for number, part in enumerate(found.content or ()):
                self._tell_whole(item, Family.REASONING, number, part.words)
            for number, part in enumerate(found.summary or ()):
                self._tell_whole(item, Family.SUMMARY, number, part.words)
            if found.encrypted_content and not item.sealed:
                item.sealed = True
                self._add(Delta(0, sealed_reasoning=found.encrypted_content))

    def _tell_rest(self, result: wire.Response) -> None:
        """Tells what only the result holds. Servers number the items of a result as they like, so
        a kind of which anything was told before is taken as told; calls have names of their own."""
        told = frozenset(self._told)
        sealed = any(item.sealed for item in self._items.values())
        for raw in result.output or ():
            found = wire.decode_item(raw)
            if found is None:
                continue
            if found.type == wire.CALL:
                item = self._call_ids.get(found.call_id or found.id or "") or _Item()
                self._tell_item(item, found)
            elif found.type == wire.REASONING:
                if told & {Family.REASONING, Family.SUMMARY}:
                    found.content = found.summary = None
                self._tell_item(_Item(sealed=sealed), found)
            elif not told & {Family.TEXT, Family.REFUSAL}:
                self._tell_item(_Item(), found)

    # The beginning and the end.

    def _open(self, result: wire.Response) -> None:
        self._opened = True
        # "auto" is what was asked for, not what was given.
        tier = result.service_tier if result.service_tier != "auto" else None
        self._events.append(Opened(service_tier=tier))

    def _end(self, result: wire.Response, status: str) -> None:
        error = error_record(result.error)
        failed = error is not None or status in ("failed", "cancelled")
        if not failed and status not in ("completed", "incomplete"):
            raise MalformedAnswer("it ended before the answer did")
        self._tell_rest(result)
        report = wire.usage_report(result.usage)
        if failed:
            self._fail_with(error, report)
            return
        self._add(Delta(0, finish=self._finish(result, status)))
        if report is not None:
            self._events.append(report)
        self.done = self._announced is None
        self.failure = self._announced

    def _finish(self, result: wire.Response, status: str) -> Finish:
        if status == "incomplete":
            details = result.incomplete_details
            if details is not None and details.reason == "content_filter":
                return Finish.CONTENT_FILTER
            return Finish.LENGTH
        if not self._calls:
            return Finish.STOP
        return Finish.FUNCTION_CALL if self._legacy else Finish.TOOL_CALLS

    def _fail_with(self, error: object, report: UsageReport | None) -> None:
        failure = self._announced or self._refused(error)
        if report is not None and tells_of_use(report):
            self.accepted = True
            self._events.append(report)
        self.failure = failure

    def _announce(self, event: wire.StreamEvent) -> None:
        """The failure is known, and the result that tells of its usage may still come."""
        error = error_record(event.error)
        if error is None:
            code, message = given(event.code), given(event.message)
            error = {
                "code": None if code is None else anything(code),
                "message": None if message is None else anything(message),
            }
        if self._announced is None:
            self._announced = self._refused(error)
            self.failing = True

    def _refused(self, error: object) -> TollkeeperError:
        if self.accepted:
            return BackendFailed("The backend failed while it was answering.")
        return refusal_record(error, secrets=self._secrets)

    def _add(self, delta: Delta) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise MalformedAnswer("it is longer than its bound")
        self.accepted = True
        self._events.append(delta)


def _number(event: wire.StreamEvent, family: Family) -> int:
    if family is Family.ARGUMENTS:
        return 0
    return (event.summary_index if family is Family.SUMMARY else event.content_index) or 0


def _part_number(event: wire.StreamEvent) -> int:
    return (event.content_index if event.summary_index is None else event.summary_index) or 0


def _status(result: wire.Response, said: str) -> str:
    """What the result says of itself, where that is an end at all, and else what its event says."""
    status = result.status
    return status if status is not None and status in wire.ENDS.values() else said
