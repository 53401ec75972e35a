"""Decodes the JSON of model servers, for the readers of every protocol.

Reading is tolerant: unknown fields are skipped, and a field may be null or missing if some server
omits it.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.usage import AbsurdCount, ReportedUsage, normalised

ABSENT = msgspec.Raw()
NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()
_Answer = TypeVar("_Answer")
# Every escape of a JSON text. The groups are unpaired halves of a surrogate pair: the first half at
# the end of a string, the second half, and the first half elsewhere.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    rb"|(?P<first>u[dD][89abAB][\da-fA-F]{2})(?=\")"
    rb"|(?P<second>u[dD][c-fC-F][\da-fA-F]{2})"
    rb"|(?P<alone>u[dD][89abAB][\da-fA-F]{2})"
    rb"|.)",
    re.DOTALL,
)
_REPLACEMENT = rb"\ufffd"
# A record may have the same text in several fields, and several choices may alternate.
_WAITING_HALVES_MAX = 64


class MalformedAnswer(Exception):
    """The backend's answer violates the protocol."""


class SplitCharacters:
    """Joins characters whose surrogate pair a server has split between two records, because it cuts
    text by UTF-16 units. A first half waits for the second half in a later record. Halves are
    joined in the order of their arrival. An unpaired half is dropped, or becomes U+FFFD if no other
    half can follow."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_HALVES_MAX)

    def join(self, record: bytes) -> bytes:
        if b"\\ud" not in record and b"\\uD" not in record:
            return record
        return _ESCAPE.sub(self._joined, record)

    def _joined(self, escape: re.Match[bytes]) -> bytes:
        match escape.lastgroup:
            case "first":
                self._waiting.append(escape[0])
                return b""
            case "second":
                return self._waiting.popleft() + escape[0] if self._waiting else _REPLACEMENT
            case "alone":
                return _REPLACEMENT
        return escape[0]


class UsageAlone(msgspec.Struct, gc=False):
    """Decodes only the usage of an answer."""

    usage: msgspec.Raw = ABSENT
    service_tier: Any = None

    @property
    def tier(self) -> str | None:
        return self.service_tier if isinstance(self.service_tier, str) else None


class _FlatError(msgspec.Struct, gc=False):
    """Decodes an error whose fields are those of the body."""

    object: Any = None
    code: Any = None
    message: Any = None


_usage_decoder = msgspec.json.Decoder(UsageAlone)
_flat_error_decoder = msgspec.json.Decoder(_FlatError)


def given(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Returns the field's value, or None if it is missing or null. The value is a copy, because a
    view would keep the whole record in memory."""
    return None if raw is ABSENT or raw == NULL else raw.copy()


def decode(decoder: msgspec.json.Decoder[_Answer], body: bytes | msgspec.Raw) -> _Answer:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        # Servers that use Python's json module may write NaN into usage, which is not JSON. Only
        # that number is useless, not the answer, so it is read as null.
        written = bytes(body)
        if b"NaN" not in written and b"Infinity" not in written:
            raise MalformedAnswer("a record is not an answer in JSON") from error
    try:
        repaired = json.loads(written, parse_constant=lambda _: None)
        return decoder.decode(_encoder.encode(repaired))
    except (ValueError, OverflowError, RecursionError) as error:
        raise MalformedAnswer("a record is not an answer in JSON") from error


def decode_whole(decoder: msgspec.json.Decoder[_Answer], body: bytes) -> _Answer:
    """Decodes an answer that is one JSON body, and checks that it is UTF-8. Stream records need no
    such check, because the event stream parser has made it."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise MalformedAnswer("the answer is not UTF-8") from error
    return decode(decoder, body)


def anything(raw: msgspec.Raw) -> Any:
    """Returns the value of a field that may have any type; an empty object if it cannot be
    decoded."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def error_record(error: msgspec.Raw) -> Any | None:
    """Returns the error that a server sends in place of an answer, or None."""
    found = given(error)
    return None if found is None else anything(found)


def with_status(error: Any, field: str, statuses: Mapping[str, int]) -> Any:
    """Returns an error record whose `code` is the status for the word in `field`, unless it already
    has a code."""
    if not isinstance(error, dict) or error.get("code") is not None:
        return error
    word = error.get(field)
    return {**error, "code": statuses.get(word) if isinstance(word, str) else None}


def flat_error_record(body: bytes) -> dict[str, Any] | None:
    """Returns the error if the whole body is an error object (SGLang, Mistral), or None."""
    try:
        found = decode_whole(_flat_error_decoder, body)
    except MalformedAnswer:
        return None
    if found.object != "error":
        return None
    return {"code": found.code, "message": found.message}


def usage_alone(body: bytes) -> UsageAlone:
    """Returns the usage in a body whose other content cannot be read, if there is any."""
    try:
        return decode_whole(_usage_decoder, body)
    except MalformedAnswer:
        return UsageAlone()


def usage_report(
    reported: Any, read: Callable[[dict[str, Any]], ReportedUsage], service_tier: str | None = None
) -> UsageReport:
    """Reads a usage report by the rules of its protocol. A report that is not an object contains
    nothing, and one with an impossible count is absurd."""
    if not isinstance(reported, dict):
        return UsageReport(ReportedUsage(service_tier=service_tier))
    try:
        return UsageReport(read(reported))
    except AbsurdCount:
        return UsageReport(None, absurd=reported)


def tells_of_use(report: UsageReport) -> bool:
    """Tells whether the usage in an error means that the call is charged. It does not if there are
    no tokens, or if there is no output and the server states a price of zero (OpenRouter). An
    unreadable report may contain anything, so it does."""
    if report.usage is None:
        return True
    usage = normalised(report.usage)
    if usage is None or usage.total_tokens == 0:
        return False
    return usage.completion_tokens > 0 or report.usage.cost_picousd != 0
