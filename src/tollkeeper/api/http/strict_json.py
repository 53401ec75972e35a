"""Decodes JSON bodies strictly: rejects duplicate keys, deep nesting and too many elements. Errors name
the path of the invalid field.

msgspec checks syntax, types and limits of fields in one pass, and its errors contain the path. If a key
occurs twice in an object, msgspec silently uses the last value, so a second pass looks for duplicates. This
pass is skipped if the number of colons outside of strings shows that there are none, as in chat requests
whose messages have only roles and texts.

Nesting and the number of elements are checked before a body is decoded, so that a malicious body
cannot use much memory. This check uses `bytes` operations on small slices. Each operation takes at
most about a millisecond, so that other threads can run in between.
"""

import json
import re
from collections.abc import Hashable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import msgspec

from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.http.request_memory import RequestShare, memory_of
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.runtime.large_requests import LARGE_CALL_REQUESTS_MAX, run_in_thread

T = TypeVar("T")

# The default maximum number of elements in all arrays and objects of a body together.
_ELEMENTS_MAX = 100_000
# Patterns that find the path and the name of the invalid field in the text of msgspec's errors. The text
# before the path may quote a value of the client, so the patterns must match at the end of the text, and
# the whole text without its path.
_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_FIELD = re.compile(
    r"Object (?:contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL
)
_PARAM_LENGTH_MAX = 200
_BLANKS = " \t\r\n"
# Every element of an array or object begins after an opening bracket or a comma.
_NO_ELEMENT_START = bytes(set(range(256)) - set(b"{[,"))
DEPTH_MAX = 64
_SLICE_BYTES = 32 << 10
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHANGES = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# A body with more bytes or more elements than this takes more than a few milliseconds to decode.
_SMALL_BYTES = 128 << 10
_FEW_ELEMENTS = 5000
# A body with more quotes than this has more than `_FEW_ELEMENTS`: an element is at most a key and a string.
_QUOTES_MAX = 4 * _FEW_ELEMENTS
# Decodes only the keys of an object. The values stay JSON.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
# The text of an integer in a query: at most 18 digits, more than any query parameter allows. `convert`
# leaves any other text as it is, and msgspec then rejects the text.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


async def decode_body(
    request: Request[Any, Any], share: RequestShare, elements_max: int, owner: Hashable
) -> Any:
    """Returns the decoded body, or None if the endpoint takes no body. Reserves memory for the request
    with `share`. Decodes a large body in a thread, so that the event loop can serve other requests
    meanwhile, and sets `request.is_large`."""
    body, decoder = request.raw_body, request.context.decoder
    if decoder is None:
        if body:
            raise InvalidRequest("This operation takes no body.")
        return None
    # A long body is searched in the thread only, because the search would block the event loop.
    if len(body) > _SMALL_BYTES:
        request.is_large = True
    else:
        # The body without its strings. If it has too many strings, some of them remain, so that
        # brackets, commas and colons in them are counted too.
        structure = b"".join(_split_at_quotes(body, _QUOTES_MAX)[::2])
        elements = len(structure.translate(None, _NO_ELEMENT_START))
        if elements > _FEW_ELEMENTS:
            request.is_large = True
    if request.is_large:
        share.grow_to(await run_in_thread(owner, _checked_memory_of, body, elements_max))
        decoded = await run_in_thread(owner, _decode_bounded, body, decoder, request)
    else:
        # A body with few elements cannot be nested too deeply.
        if elements > DEPTH_MAX and (_openings(structure) > DEPTH_MAX or elements > elements_max):
            elements = check_bounds(body, elements_max)
        share.grow_to(memory_of(body, elements))
        decoded = _decode_bounded(body, decoder, request, structure.count(b":"))
    if request.context.endpoint.stored:
        _refuse_nul(body, decoded)
    completions = getattr(decoded, "n", None)
    if completions:
        # If the backend creates only one completion per request, the gateway sends one request for
        # each completion. Each of these requests needs memory for the body while it is in progress.
        # For a large body, at most `LARGE_CALL_REQUESTS_MAX` of them are in progress at the same time.
        completions = min(completions, LARGE_CALL_REQUESTS_MAX) if request.is_large else completions
        share.grow_to(share.size + (completions - 1) * len(body))
    return decoded


def _checked_memory_of(body: bytes, elements_max: int) -> int:
    return memory_of(body, check_bounds(body, elements_max))


def decode(body: bytes, decoder: msgspec.json.Decoder[T], elements_max: int = _ELEMENTS_MAX) -> T:
    """Returns the decoded body. Raises InvalidRequest with the path of the invalid field in
    `param`."""
    check_bounds(body, elements_max)
    return _decode_bounded(body, decoder)


def _decode_bounded(
    body: bytes,
    decoder: msgspec.json.Decoder[T],
    request: Request[Any, Any] | None = None,
    members: int = 0,
) -> T:
    """Works like `decode`, for a body whose depth and number of elements are already checked. `members` is
    the number of members (pairs of a key and a value) of all objects in the body; 0 if it is not known."""
    try:
        decoded = decoder.decode(body)
        message_members = getattr(decoded, "message_members", 0)
        if message_members and request is not None:
            request.fields = _fields.decode(body)
            # The decoded body has at least this many different members. If the JSON does not have more, no
            # key occurs twice.
            if members == len(request.fields) + message_members:
                return decoded
        # The body is valid JSON, so the second pass can fail only because of duplicate keys.
        _DUPLICATE_FINDER.raw_decode(body.decode().lstrip(_BLANKS))
    except msgspec.ValidationError as exc:
        error = _invalid_request(exc)
        hint = getattr(decoder.type, "hints", {}).get(error.param)
        raise error if hint is None else InvalidRequest(hint, param=error.param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    return decoded


def check_bounds(body: bytes, elements_max: int) -> int:
    """Rejects a body that is nested too deeply, or whose arrays and objects together have more than
    `elements_max` elements. Returns the number of elements. An empty array or object counts as one
    element."""
    elements = depth = 0
    for structure in _structure(body):
        elements += _openings(structure) + structure.count(b",")
        if elements > elements_max:
            raise InvalidRequest(f"The body has more than {elements_max} elements.")
        brackets = structure.translate(None, _ALL_BUT_BRACKETS)
        depths = list(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets), initial=depth))
        if max(depths) > DEPTH_MAX:
            raise InvalidRequest(f"The body is nested more than {DEPTH_MAX} levels deep.")
        depth = depths[-1]
    return elements


def _openings(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _split_at_quotes(text: bytes, quotes_max: int = -1) -> list[bytes]:
    """Splits JSON at the quotes that begin and end strings. Escaped backslashes and quotes are removed
    first, so the parts are outside and inside of strings in turn."""
    if text.find(b"\\") >= 0:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.split(b'"', quotes_max)


def _structure(body: bytes) -> Iterator[bytes]:
    """Yields the body without its JSON strings, slice by slice."""
    inside_string = False
    start = 0
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The slice would end between a backslash and the character that the backslash escapes.
            piece = body[start : start + _SLICE_BYTES + 1]
        start += len(piece)
        parts = _split_at_quotes(piece)
        yield b"".join(parts[1::2] if inside_string else parts[0::2])
        inside_string ^= len(parts) % 2 == 0


def decode_within(part: msgspec.Raw, decoder: msgspec.json.Decoder[T], place: str) -> T:
    """Decodes a part of a body that `decode` left undecoded (`msgspec.Raw`). `place` is the path of
    the part in the body, for errors."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not valid JSON: {exc}", param=place) from None


def convert_within(value: object, kind: type[T], place: str) -> T:
    """Works like `decode_within`, for a part that is already decoded but not yet checked against a
    type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None


def convert(values: dict[str, Any], kind: type[T]) -> T:
    """Converts query parameters, which arrive as text, to a struct. Raises the same errors as for a
    body.

    msgspec's lax mode would accept `1.0` as an integer and `null` as None. This function therefore
    converts integers itself and then uses msgspec's strict mode.
    """
    integers = _integer_fields(cast("type", kind))
    for name, value in values.items():
        if name in integers and _INTEGER.fullmatch(value) is not None:
            values[name] = int(value)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc) from None


@cache
def _integer_fields(kind: type) -> frozenset[str]:
    names = set()
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        if any(isinstance(member, msgspec.inspect.IntType) for member in members):
            names.add(field.name)
    return frozenset(names)


def _refuse_nul(body: bytes, decoded: msgspec.Struct) -> None:
    """Rejects a body with the character U+0000. Used for bodies that are stored in the database,
    because PostgreSQL's text type cannot contain this character."""
    if b"\\u0000" not in body:
        return
    for field, value in msgspec.to_builtins(decoded).items():
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and "\x00" in text for text in texts):
            raise InvalidRequest("The character U+0000 is not allowed.", param=field)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(
                    f"The key {key[:_PARAM_LENGTH_MAX]!r} occurs twice in one object.",
                    param=_encodable(key[:_PARAM_LENGTH_MAX]),
                )
            seen.add(key)


# Leaves numbers as text, because Python refuses to convert very long integers.
_DUPLICATE_FINDER = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_int=str, parse_float=str
)


def _invalid_request(exc: msgspec.ValidationError, place: str = "") -> InvalidRequest:
    """Converts an error of msgspec. Moves the path, such as `messages[2].role`, from the message into
    `param`."""
    text = str(exc)
    path = place
    match = _PATH.search(text)
    if match is not None:
        path = (place + match["path"]).lstrip(".")
        text = text[: match.start()]
    field = _FIELD.fullmatch(text)
    if field is not None:
        path = f"{path}.{field['field']}" if path else field["field"]
    param = _encodable(path[:_PARAM_LENGTH_MAX]) or None
    message = _encodable(text[:500])
    return InvalidRequest(f"{message}." if not message.endswith(".") else message, param=param)


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded as UTF-8 in the response."""
    return text.encode("utf-8", "replace").decode()
