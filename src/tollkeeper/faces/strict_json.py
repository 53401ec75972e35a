"""Decodes JSON bodies strictly: no duplicate keys, deep nesting or too many elements.

If a key occurs twice, msgspec silently uses the last value, so a second pass looks for duplicates.
It's skipped if the number of colons outside of strings shows that there are none, as in chat
requests whose messages only have roles and texts.

Nesting and elements are checked before a body is decoded, so that a malicious one can't use much
memory. That's done with `bytes` operations on small slices, at most about a millisecond each, so
that other threads can run in between.
"""

import json
import re
from collections.abc import Hashable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.runtime.large_requests import LARGE_CALL_REQUESTS_MAX, run_in_thread
from tollkeeper.faces.endpoint import Request
from tollkeeper.http.request_memory import RequestShare, memory_of

T = TypeVar("T")

_ELEMENTS_MAX = 100_000
# Find the field in msgspec's errors. The text before the path may quote the client, so the patterns
# must match at the end of the text, and the whole text without its path.
_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_FIELD = re.compile(
    r"Object (?:contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL
)
_PARAM_LENGTH_MAX = 200
_BLANKS = " \t\r\n"
# Every element begins after an opening bracket or a comma.
_NO_ELEMENT_START = bytes(set(range(256)) - set(b"{[,"))
DEPTH_MAX = 64
_SLICE_BYTES = 32 << 10
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHANGES = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# More than this takes more than a few milliseconds to decode.
_SMALL_BYTES = 128 << 10
_FEW_ELEMENTS = 5000
# An element is at most a key and a string, so more quotes mean more than `_FEW_ELEMENTS`.
_QUOTES_MAX = 4 * _FEW_ELEMENTS
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
# At most 18 digits, more than any parameter allows. Other text stays, and msgspec rejects it.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


async def decode_body(
    request: Request[Any, Any], share: RequestShare, elements_max: int, owner: Hashable
) -> Any:
    """Decodes a large body in a thread, so that the event loop can serve other requests, and then
    sets `request.is_large`."""
    body, decoder = request.raw_body, request.context.decoder
    if decoder is None:
        if body:
            raise InvalidRequest("This operation takes no body.")
        return None
    # A long body is only searched in the thread, because that would block the event loop.
    if len(body) > _SMALL_BYTES:
        request.is_large = True
    else:
        # Without strings. If there are too many, some remain and count too.
        structure = b"".join(_split_at_quotes(body, _QUOTES_MAX)[::2])
        elements = len(structure.translate(None, _NO_ELEMENT_START))
        if elements > _FEW_ELEMENTS:
            request.is_large = True
    if request.is_large:
        share.grow_to(await run_in_thread(owner, _checked_memory_of, body, elements_max))
        decoded = await run_in_thread(owner, _decode_bounded, body, decoder, request)
    else:
        # Few elements can't be nested too deeply.
        if elements > DEPTH_MAX and (_openings(structure) > DEPTH_MAX or elements > elements_max):
            elements = check_bounds(body, elements_max)
        share.grow_to(memory_of(body, elements))
        decoded = _decode_bounded(body, decoder, request, structure.count(b":"))
    if request.context.endpoint.stored:
        _refuse_nul(body, decoded)
    completions = getattr(decoded, "n", None)
    if completions:
        # If the backend creates only one completion per request, each is a request of its own, with
        # its own body in memory. Large ones are limited to `LARGE_CALL_REQUESTS_MAX` at a time.
        completions = min(completions, LARGE_CALL_REQUESTS_MAX) if request.is_large else completions
        share.grow_to(share.size + (completions - 1) * len(body))
    return decoded


def _checked_memory_of(body: bytes, elements_max: int) -> int:
    return memory_of(body, check_bounds(body, elements_max))


def decode(body: bytes, decoder: msgspec.json.Decoder[T], elements_max: int = _ELEMENTS_MAX) -> T:
    """Raises InvalidRequest with the field's path in `param`."""
    check_bounds(body, elements_max)
    return _decode_bounded(body, decoder)


def _decode_bounded(
    body: bytes,
    decoder: msgspec.json.Decoder[T],
    request: Request[Any, Any] | None = None,
    members: int = 0,
) -> T:
    """`members` counts the members (key and value) of all objects in the body; 0 if unknown."""
    try:
        decoded = decoder.decode(body)
        message_members = getattr(decoded, "message_members", 0)
        if message_members and request is not None:
            request.fields = _fields.decode(body)
            # It has at least this many different members, so with no more in the JSON no key is
            # there twice.
            if members == len(request.fields) + message_members:
                return decoded
        # It's valid JSON, so this can only fail because of duplicate keys.
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
    """Returns the number of elements. An empty array or object counts as one."""
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
    """Outside and inside of strings in turn, without escaped backslashes and quotes."""
    if text.find(b"\\") >= 0:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.split(b'"', quotes_max)


def _structure(body: bytes) -> Iterator[bytes]:
    """Without strings, slice by slice."""
    inside_string = False
    start = 0
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # Don't end between a backslash and what it escapes.
            piece = body[start : start + _SLICE_BYTES + 1]
        start += len(piece)
        parts = _split_at_quotes(piece)
        yield b"".join(parts[1::2] if inside_string else parts[0::2])
        inside_string ^= len(parts) % 2 == 0


def decode_within(part: msgspec.Raw, decoder: msgspec.json.Decoder[T], place: str) -> T:
    """For what `decode` left as `msgspec.Raw`, at `place` in the body."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not valid JSON: {exc}", param=place) from None


def convert_within(value: object, kind: type[T], place: str) -> T:
    """For what's decoded but not yet checked against a type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None


def convert(values: dict[str, Any], kind: type[T]) -> T:
    """For query parameters, which arrive as text. Raises the same errors as a body.

    msgspec's lax mode would accept `1.0` as an integer and `null` as None, so this converts
    integers itself and uses the strict mode.
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
    """For bodies that are stored, because PostgreSQL's text can't contain U+0000."""
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
    """Moves the path, such as `messages[2].role`, from the message into `param`."""
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
    """Replaces lone surrogates, which can't be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()
