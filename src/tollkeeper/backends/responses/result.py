"""Decodes the records of a Responses backend: stream events, items, parts and the final result.

Reading is tolerant, because servers differ. A field that has another form in an event or item of an
unknown type stays raw here; it is decoded only after the type is known.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from tollkeeper.backends.answer_json import (
    ABSENT,
    MalformedAnswer,
    decode,
    decode_any,
    decode_whole,
    value_or_none,
)
from tollkeeper.backends.responses.usage import read_responses_usage
from tollkeeper.domain.inference import Annotation, UsageReport

# The types of output items that are read. Items of any other type are ignored.
MESSAGE = "message"
CALL = "function_call"
CUSTOM_CALL = "custom_tool_call"
REASONING = "reasoning"
CALLS = (CALL, CUSTOM_CALL)
_KNOWN_ITEMS = (MESSAGE, *CALLS, REASONING)
_KNOWN_ANNOTATIONS = ("url_citation",)
_SEARCH = b"web_search_call"


class TextKind(StrEnum):
    """Lists the kinds of text that an item streams."""

    TEXT = "text"
    REFUSAL = "refusal"
    REASONING = "reasoning"
    SUMMARY = "summary"
    ARGUMENTS = "arguments"


# Some servers name the text of reasoning `reasoning_text`, others `reasoning`.
DELTA_EVENTS = {
    "response.output_text.delta": TextKind.TEXT,
    "response.refusal.delta": TextKind.REFUSAL,
    "response.reasoning_text.delta": TextKind.REASONING,
    "response.reasoning.delta": TextKind.REASONING,
    "response.reasoning_summary_text.delta": TextKind.SUMMARY,
    "response.function_call_arguments.delta": TextKind.ARGUMENTS,
    "response.custom_tool_call_input.delta": TextKind.ARGUMENTS,
}
DONE_EVENTS = {name.removesuffix("delta") + "done": kind for name, kind in DELTA_EVENTS.items()}
PART_KINDS = {
    "output_text": TextKind.TEXT,
    "text": TextKind.TEXT,
    "refusal": TextKind.REFUSAL,
    "reasoning_text": TextKind.REASONING,
    "summary_text": TextKind.SUMMARY,
}
PART_DONE_EVENTS = (
    "response.content_part.done",
    "response.reasoning_part.done",
    "response.reasoning_summary_part.done",
)
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
ANNOTATION_ADDED = "response.output_text.annotation.added"
CREATED = "response.created"
ERROR = "error"
# The events that end an answer, and the status of the result in each one.
FINAL_EVENTS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_KNOWN_EVENTS = frozenset(
    {
        *DELTA_EVENTS,
        *DONE_EVENTS,
        *PART_DONE_EVENTS,
        *FINAL_EVENTS,
        ITEM_ADDED,
        ITEM_DONE,
        ANNOTATION_ADDED,
        CREATED,
        ERROR,
    }
)


class StreamEvent(msgspec.Struct, gc=False):
    """Represents one record of a stream, with the fields of every known event."""

    type: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    # The arguments of a custom tool, which are arbitrary text.
    input: str | None = None
    logprobs: msgspec.Raw = ABSENT
    annotation: msgspec.Raw = ABSENT
    part: msgspec.Raw = ABSENT
    item: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    # Some servers send an error as an object, others put its fields into the event itself.
    error: msgspec.Raw = ABSENT
    code: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT


class Part(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    annotations: list[msgspec.Raw] | None = None
    logprobs: msgspec.Raw = ABSENT

    @property
    def text_or_refusal(self) -> str:
        return self.text or self.refusal or ""


class Item(msgspec.Struct, gc=False):
    type: str | None = None
    id: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """Represents a result: complete, or partial at the time of its event."""

    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    incomplete_details: _IncompleteDetails | None = None
    service_tier: str | None = None


class _Citation(msgspec.Struct, gc=False):
    type: str | None = None
    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _TypeOnly(msgspec.Struct, gc=False):
    type: Any = None


_Record = TypeVar("_Record", StreamEvent, Item, _Citation)
_event_decoder = msgspec.json.Decoder(StreamEvent)
_item_decoder = msgspec.json.Decoder(Item)
_part_decoder = msgspec.json.Decoder(Part)
_response_decoder = msgspec.json.Decoder(Response)
_citation_decoder = msgspec.json.Decoder(_Citation)
_type_decoder = msgspec.json.Decoder(_TypeOnly)


def decode_event(payload: bytes) -> StreamEvent | None:
    """Returns None for an event of an unknown type, whatever its fields are."""
    return _decode_known(_event_decoder, payload, _KNOWN_EVENTS)


def decode_item(raw: msgspec.Raw) -> Item | None:
    """Returns None for a missing item, and for an item of a type that is not read."""
    record = value_or_none(raw)
    return None if record is None else _decode_known(_item_decoder, record, _KNOWN_ITEMS)


def decode_part(raw: msgspec.Raw) -> Part:
    record = value_or_none(raw)
    return Part() if record is None else decode(_part_decoder, record)


def decode_response(raw: msgspec.Raw) -> Response:
    """Returns the result in an event; an empty one if the event has none."""
    record = value_or_none(raw)
    return Response() if record is None else decode(_response_decoder, record)


def decode_result(body: bytes) -> Response:
    return decode_whole(_response_decoder, body)


def decode_annotation(raw: msgspec.Raw) -> Annotation | None:
    """Returns None for an annotation that does not cite a URL."""
    record = value_or_none(raw)
    citation = None
    if record is not None:
        citation = _decode_known(_citation_decoder, record, _KNOWN_ANNOTATIONS)
    if citation is None:
        return None
    return Annotation(
        url=citation.url or "",
        title=citation.title or "",
        start_index=max(0, citation.start_index or 0),
        end_index=max(0, citation.end_index or 0),
    )


def chat_logprobs(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Wraps a text's list of log-probabilities in the object of the chat protocol; None if it is
    empty."""
    written = bytes(raw)
    if not written.startswith(b"[") or not written[1:-1].strip():
        return None
    return msgspec.Raw(b'{"content":%b,"refusal":null}' % written)


def usage_report(result: Response, searches_told: int = 0) -> UsageReport | None:
    """Returns the report in a result, or None. `searches_told` is the number of searches that the
    stream has reported, which the result may omit."""
    found = value_or_none(result.usage)
    if found is None:
        return None
    ended = result.status in (None, "completed")
    searches = sum(is_search(item, ended=ended) for item in result.output or ())
    return read_responses_usage(
        decode_any(found),
        searches_in_output=max(searches_told, searches),
        service_tier=used_tier(result),
    )


def used_tier(result: Response) -> str | None:
    """Returns the service tier in a result. "auto" is the requested tier, not the used one."""
    return result.service_tier if result.service_tier != "auto" else None


def is_search(raw: msgspec.Raw, *, ended: bool) -> bool:
    """Tells whether an item is a completed web search. Opening a found page, or searching in it, is
    an item of the same type, but according to OpenAI only searches have a price. `ended` means that
    the item or its response is known to have ended. Azure leaves such items at "searching", so then
    only a failed item does not count."""
    if _SEARCH not in bytes(raw):
        return False
    item = decode_any(raw)
    if not isinstance(item, dict) or item.get("type") != _SEARCH.decode():
        return False
    action, status = item.get("action"), item.get("status")
    kind = action.get("type") if isinstance(action, dict) else None
    if kind not in (None, "search") or status == "failed":
        return False
    return ended or status == "completed" or (kind, status) == ("search", None)


def _decode_known(
    decoder: msgspec.json.Decoder[_Record], body: bytes | msgspec.Raw, known: Collection[str]
) -> _Record | None:
    """Decodes a record of a known type, or without a type. Returns None for any other type, even if
    its fields do not fit the struct."""
    try:
        record = decode(decoder, body)
    except MalformedAnswer:
        type_ = decode(_type_decoder, body).type
        if isinstance(type_, str) and type_ not in known:
            return None
        raise
    return record if record.type in known or record.type is None else None
