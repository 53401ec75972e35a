"""Decodes model servers' JSON, for all protocols. Tolerant: unknown fields are skipped, and fields
that some servers omit may be null or missing."""

import json
import re
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

# A `Raw` field that's missing: empty, so false in a condition.
ABSENT = msgspec.Raw()
NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()
_Answer = TypeVar("_Answer")
_Typed = TypeVar("_Typed", bound="HasType")
# Any escape sequence. The groups match an unpaired half of a UTF-16 surrogate pair: a first half at
# the string's end or elsewhere, and a second half.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    rb"|(?P<first_at_end>u[dD][89abAB][\da-fA-F]{2})(?=\")"
    rb"|(?P<second>u[dD][c-fC-F][\da-fA-F]{2})"
    rb"|(?P<first_inside>u[dD][89abAB][\da-fA-F]{2})"
    rb"|.)",
    re.DOTALL,
)
_REPLACEMENT = rb"\ufffd"
# A record may have the same text in several fields, and records of several choices may alternate.
_WAITING_HALVES_MAX = 64


class MalformedAnswer(Exception):
    """The answer violates the protocol."""


class ImagesTooLarge(MalformedAnswer):
    """More images than the gateway accepts."""


class SplitCharacters:
    """Repairs characters that a server, cutting text by UTF-16 units, has split between two
    records: the first half of the surrogate pair ends one string, and the second is in a later
    record.

    A first half at the end is removed and waits for the next second half, in the order of arrival;
    without one, it stays removed. Other unpaired halves become U+FFFD.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_HALVES_MAX)

    def join(self, record: bytes) -> bytes:
        if b"\\ud" not in record and b"\\uD" not in record:
            return record
        return _ESCAPE.sub(self._joined, record)

    def _joined(self, escape: re.Match[bytes]) -> bytes:
        match escape.lastgroup:
            case "first_at_end":
                self._waiting.append(escape[0])
                return b""
            case "second":
                return self._waiting.popleft() + escape[0] if self._waiting else _REPLACEMENT
            case "first_inside":
                return _REPLACEMENT
        return escape[0]


class HasType(Protocol):
    type: str | None


class UsageOnly(msgspec.Struct, gc=False):
    usage: msgspec.Raw = ABSENT
    service_tier: Any = None

    @property
    def tier(self) -> str | None:
        return self.service_tier if isinstance(self.service_tier, str) else None


class _FlatError(msgspec.Struct, gc=False):
    object: Any = None
    code: Any = None
    message: Any = None


class _TypeOnly(msgspec.Struct, gc=False):
    type: Any = None


_type_decoder = msgspec.json.Decoder(_TypeOnly)
_usage_decoder = msgspec.json.Decoder(UsageOnly)
_flat_error_decoder = msgspec.json.Decoder(_FlatError)


def value_or_none(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Copies, because a view would keep the whole record in memory."""
    return None if raw is ABSENT or raw == NULL else raw.copy()


def decode(decoder: msgspec.json.Decoder[_Answer], body: bytes | msgspec.Raw) -> _Answer:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        # Python's json module may write NaN or Infinity, which isn't valid JSON, in a
        # usage. The rest is valid, so it's read as null.
        json_text = bytes(body)
        if b"NaN" not in json_text and b"Infinity" not in json_text:
            raise MalformedAnswer("a record is not an answer in JSON") from error
    try:
        repaired = json.loads(json_text, parse_constant=lambda _: None)
        return decoder.decode(_encoder.encode(repaired))
    except (ValueError, OverflowError, RecursionError) as error:
        raise MalformedAnswer("a record is not an answer in JSON") from error


def decode_whole(decoder: msgspec.json.Decoder[_Answer], body: bytes) -> _Answer:
    """Checks UTF-8 too, which the parser of a stream has already done for records. Raises
    MalformedAnswer."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise MalformedAnswer("the answer is not UTF-8") from error
    return decode(decoder, body)


def decode_any(raw: msgspec.Raw) -> Any:
    """For a field of any type. An empty object if it can't be decoded."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def error_record(error: msgspec.Raw) -> Any | None:
    value = value_or_none(error)
    return None if value is None else decode_any(value)


def with_status(error: Any, field: str, statuses: Mapping[str, int]) -> Any:
    """Adds a `code`, if there's none: the HTTP status for the word in `field`, or None. An error
    that isn't an object stays unchanged."""
    if not isinstance(error, dict) or error.get("code") is not None:
        return error
    word = error.get(field)
    return {**error, "code": statuses.get(word) if isinstance(word, str) else None}


def flat_error_record(body: bytes) -> dict[str, Any] | None:
    """If the body itself is an error object, as from SGLang and Mistral."""
    try:
        error = decode_whole(_flat_error_decoder, body)
    except MalformedAnswer:
        return None
    if error.object != "error":
        return None
    return {"code": error.code, "message": error.message}


def decode_usage_only(body: bytes) -> UsageOnly:
    """As far as it can be read; the other content can't be."""
    return decoded_or(UsageOnly(), _usage_decoder, body)


def decoded_or(default: _Answer, decoder: msgspec.json.Decoder[_Answer], body: bytes) -> _Answer:
    try:
        return decode_whole(decoder, body)
    except MalformedAnswer:
        return default


def decode_known(
    decoder: msgspec.json.Decoder[_Typed], body: bytes | msgspec.Raw, known: Collection[str]
) -> _Typed | None:
    """None for an unknown `type`, even if its fields don't fit the decoder, because servers add
    types. A missing type counts as known."""
    try:
        record = decode(decoder, body)
        type_ = record.type
    except MalformedAnswer:
        type_ = type_of(body)
        if type_ is None or type_ in known:
            raise
    return record if type_ is None or type_ in known else None


def type_of(body: bytes | msgspec.Raw) -> str | None:
    type_ = decode(_type_decoder, body).type
    return type_ if isinstance(type_, str) else None
