"""Decodes the JSON of model servers; shared by the readers of every protocol.

Reading is tolerant: unknown fields are skipped, and a field may be null or missing wherever some
server leaves it out.
"""

import json
from typing import Any, TypeVar

import msgspec

ABSENT = msgspec.Raw()
_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()
_Answer = TypeVar("_Answer")


class MalformedAnswer(Exception):
    """The backend's answer is not what the protocol allows."""


def given(raw: msgspec.Raw) -> msgspec.Raw | None:
    """The field's value, or None where it is missing or null. The value is a copy, because a view
    would keep the whole record in memory."""
    if raw in (ABSENT, _NULL):
        return None
    return raw.copy()


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
    """Decodes an answer that is one JSON body, and checks that it is UTF-8. The records of a stream
    need no such check, because the parser of event streams has made it."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise MalformedAnswer("the answer is not UTF-8") from error
    return decode(decoder, body)


def anything(raw: msgspec.Raw) -> Any:
    """The value of a field that may have any type; an empty object where it cannot be decoded."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def error_record(error: msgspec.Raw) -> Any | None:
    """The error that a server sends in place of an answer; None where there is none."""
    record = given(error)
    return None if record is None else anything(record)
