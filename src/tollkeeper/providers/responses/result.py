"""Decodes Responses answers: events, items, parts and the result. Tolerant, because servers differ:
fields whose form depends on a type stay undecoded (`msgspec.Raw`) until it's known."""

from enum import StrEnum
from functools import partial

import msgspec

from tollkeeper.core.inference import Annotation, UsageReport
from tollkeeper.providers.answer_json import (
    ABSENT,
    decode,
    decode_any,
    decode_known,
    decode_whole,
    value_or_none,
)
from tollkeeper.providers.responses.usage import read_responses_usage
from tollkeeper.providers.usage_reports import report_in

# Other items are ignored, except web searches, which are only counted.
MESSAGE = "message"
CALL = "function_call"
CUSTOM_CALL = "custom_tool_call"
REASONING = "reasoning"
CALLS = (CALL, CUSTOM_CALL)
_KNOWN_ITEMS = (MESSAGE, *CALLS, REASONING)
_KNOWN_ANNOTATIONS = ("url_citation",)
_SEARCH = b"web_search_call"


class TextKind(StrEnum):
    TEXT = "text"
    REFUSAL = "refusal"
    REASONING = "reasoning"
    SUMMARY = "summary"
    ARGUMENTS = "arguments"


# Reasoning text is `reasoning_text` at some servers, `reasoning` at others.
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
# With the status that each implies.
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
    """With the fields of all known types."""

    type: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    # Text for a custom tool, not always JSON.
    input: str | None = None
    logprobs: msgspec.Raw = ABSENT
    annotation: msgspec.Raw = ABSENT
    part: msgspec.Raw = ABSENT
    item: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    # Some servers put an error's fields into the event itself.
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
    """Partial before the stream's end."""

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


_event_decoder = msgspec.json.Decoder(StreamEvent)
_item_decoder = msgspec.json.Decoder(Item)
_part_decoder = msgspec.json.Decoder(Part)
_response_decoder = msgspec.json.Decoder(Response)
_citation_decoder = msgspec.json.Decoder(_Citation)
decode_result = partial(decode_whole, _response_decoder)
decode_event = partial(decode_known, _event_decoder, known=_KNOWN_EVENTS)


def decode_item(raw: msgspec.Raw) -> Item | None:
    """None if missing or not of `_KNOWN_ITEMS`."""
    record = value_or_none(raw)
    return None if record is None else decode_known(_item_decoder, record, _KNOWN_ITEMS)


def decode_part(raw: msgspec.Raw) -> Part:
    record = value_or_none(raw)
    return Part() if record is None else decode(_part_decoder, record)


def decode_response(raw: msgspec.Raw) -> Response:
    record = value_or_none(raw)
    return Response() if record is None else decode(_response_decoder, record)


def decode_annotation(raw: msgspec.Raw, text_start: int) -> Annotation | None:
    """Its positions count from its part, which is at `text_start` in the whole answer. None if it
    doesn't cite a URL."""
    record = value_or_none(raw)
    citation = None
    if record is not None:
        citation = decode_known(_citation_decoder, record, _KNOWN_ANNOTATIONS)
    if citation is None:
        return None
    return Annotation(
        url=citation.url or "",
        title=citation.title or "",
        start_index=text_start + max(0, citation.start_index or 0),
        end_index=text_start + max(0, citation.end_index or 0),
    )


def chat_logprobs(raw: msgspec.Raw) -> msgspec.Raw | None:
    """None for an empty or missing list."""
    encoded = bytes(raw)
    if not encoded.startswith(b"[") or not encoded[1:-1].strip():
        return None
    return msgspec.Raw(b'{"content":%b,"refusal":null}' % encoded)


def usage_report(result: Response, searches_in_stream: int = 0) -> UsageReport | None:
    """The result may omit searches that were in the stream."""
    ended = result.status in (None, "completed")
    searches = sum(is_search(item, ended=ended) for item in result.output or ())
    read = partial(
        read_responses_usage,
        searches_in_output=max(searches_in_stream, searches),
        service_tier=used_tier(result),
    )
    return report_in(result.usage, read)


def used_tier(result: Response) -> str | None:
    """None if unknown. "auto" only repeats the request."""
    return result.service_tier if result.service_tier != "auto" else None


def is_search(raw: msgspec.Raw, *, ended: bool) -> bool:
    """A completed one. Opening a page or searching in it has the same type but another action, and
    OpenAI charges only for searches. `ended`: the item or its response has ended, so it counts
    unless it failed; Azure leaves its status at "searching"."""
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
