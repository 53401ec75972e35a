"""The Responses protocol as model servers speak it: its events and its result, read tolerantly.

Everything that may be of another shape in an event or item that we do not know is read later, by
who knows what it is.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from tollkeeper.backends.answer_json import (
    ABSENT,
    MalformedAnswer,
    anything,
    decode,
    decode_whole,
    given,
)
from tollkeeper.backends.responses.usage import read_responses_usage
from tollkeeper.domain.inference import Annotation, UsageReport

# What an answer is made of here; items of other kinds are the backend's own affair.
MESSAGE = "message"
CALL = "function_call"
REASONING = "reasoning"
_ITEMS = (MESSAGE, CALL, REASONING)
_CITATION = "url_citation"
_URL_CITATIONS = (_CITATION,)


class Family(StrEnum):
    """What grows in an item."""

    TEXT = "text"
    REFUSAL = "refusal"
    REASONING = "reasoning"
    SUMMARY = "summary"
    ARGUMENTS = "arguments"


# Servers differ in what they call the text of reasoning.
PIECES = {
    "response.output_text.delta": Family.TEXT,
    "response.refusal.delta": Family.REFUSAL,
    "response.reasoning_text.delta": Family.REASONING,
    "response.reasoning.delta": Family.REASONING,
    "response.reasoning_summary_text.delta": Family.SUMMARY,
    "response.function_call_arguments.delta": Family.ARGUMENTS,
}
WHOLES = {name.removesuffix("delta") + "done": family for name, family in PIECES.items()}
PARTS = {
    "output_text": Family.TEXT,
    "text": Family.TEXT,
    "refusal": Family.REFUSAL,
    "reasoning_text": Family.REASONING,
    "summary_text": Family.SUMMARY,
}
PART_DONE = (
    "response.content_part.done",
    "response.reasoning_part.done",
    "response.reasoning_summary_part.done",
)
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
ANNOTATION_ADDED = "response.output_text.annotation.added"
CREATED = "response.created"
ERROR = "error"
# How an answer ends, and what its result says of itself then.
ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_KNOWN = frozenset(
    {*PIECES, *WHOLES, *PART_DONE, *ENDS, ITEM_ADDED, ITEM_DONE, ANNOTATION_ADDED, CREATED, ERROR}
)


class StreamEvent(msgspec.Struct, gc=False):
    """One record of a stream: the fields of all events that we know."""

    type: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    logprobs: msgspec.Raw = ABSENT
    annotation: msgspec.Raw = ABSENT
    part: msgspec.Raw = ABSENT
    item: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    # An error stands in a field of its own, or its fields are those of the event.
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
    def words(self) -> str:
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


class _IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """A result, whole or as far as it has come."""

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


class _Typed(msgspec.Struct, gc=False):
    type: Any = None


_Found = TypeVar("_Found", StreamEvent, Item, _Citation)
_event_decoder = msgspec.json.Decoder(StreamEvent)
_item_decoder = msgspec.json.Decoder(Item)
_part_decoder = msgspec.json.Decoder(Part)
_response_decoder = msgspec.json.Decoder(Response)
_citation_decoder = msgspec.json.Decoder(_Citation)
_typed_decoder = msgspec.json.Decoder(_Typed)


def decode_event(payload: bytes) -> StreamEvent | None:
    """None for an event that nobody here knows: it may look as it likes."""
    return _decode_known(_event_decoder, payload, _KNOWN)


def decode_item(raw: msgspec.Raw) -> Item | None:
    """None for an item that is no part of the answer as others know it."""
    found = given(raw)
    return None if found is None else _decode_known(_item_decoder, found, _ITEMS)


def decode_part(raw: msgspec.Raw) -> Part:
    found = given(raw)
    return Part() if found is None else decode(_part_decoder, found)


def decode_response(raw: msgspec.Raw) -> Response:
    """The result in an event; an event without one says all that it has to say by its type."""
    found = given(raw)
    return Response() if found is None else decode(_response_decoder, found)


def decode_result(body: bytes) -> Response:
    return decode_whole(_response_decoder, body)


def annotation_of(raw: msgspec.Raw) -> Annotation | None:
    """None where it is no citation of an address."""
    found = given(raw)
    citation = None
    if found is not None:
        citation = _decode_known(_citation_decoder, found, _URL_CITATIONS)
    if citation is None:
        return None
    return Annotation(
        url=citation.url or "",
        title=citation.title or "",
        start_index=max(0, citation.start_index or 0),
        end_index=max(0, citation.end_index or 0),
    )


def chat_logprobs(raw: msgspec.Raw) -> msgspec.Raw | None:
    """The list of a text's log-probabilities, put where chat has it; None where it is empty."""
    written = bytes(raw)
    if not written.startswith(b"[") or not written[1:-1].strip():
        return None
    return msgspec.Raw(b'{"content":%b,"refusal":null}' % written)


def usage_report(usage: msgspec.Raw) -> UsageReport | None:
    """The report in a result; None where there is none at all."""
    found = given(usage)
    return None if found is None else read_responses_usage(anything(found))


def _decode_known(
    decoder: msgspec.json.Decoder[_Found], body: bytes | msgspec.Raw, known: Collection[str]
) -> _Found | None:
    """What has one of these types; None for anything else, however its fields look."""
    try:
        found = decode(decoder, body)
    except MalformedAnswer:
        kind = decode(_typed_decoder, body).type
        if isinstance(kind, str) and kind not in known:
            return None
        raise
    return found if found.type in known or found.type is None else None
