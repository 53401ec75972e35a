"""JSON as this service takes it: one value, no duplicate keys, bounded nesting, a clear error.

msgspec checks syntax, types and bounds in one pass and gives the message its path. It keeps the
last of duplicate keys silently, so a second, cheap pass looks for them before the body is believed.
"""

import json
import re
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from tollkeeper.domain.errors import InvalidRequest

T = TypeVar("T")

DEPTH_MAX = 64
_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*?)`", re.DOTALL)
_PARAM_LENGTH_MAX = 200
# Longer than any bound: what does not match stays text and is refused as such.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
# Possessive, and content with a string that never ends: no body makes it look at a byte twice.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The decoded body, or InvalidRequest with the path of the field in `param`."""
    _check_depth(body)
    try:
        decoded = decoder.decode(body)
        _check_duplicates(body)
    except msgspec.ValidationError as exc:
        raise _explained(exc) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    return decoded


def decode_within(part: msgspec.Raw, decoder: msgspec.json.Decoder[T], place: str) -> T:
    """A part of a body that passed `decode` with this part left raw; errors name its place."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as exc:
        raise _explained(exc, place) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not valid JSON: {exc}", param=place) from None


def convert_within(value: object, kind: type[T], place: str) -> T:
    """Like `decode_within`, for a part that is decoded but not checked."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise _explained(exc, place) from None


def convert(values: dict[str, Any], kind: type[T]) -> T:
    """Query parameters, which arrive as text, with the same errors as a body.

    msgspec's lax mode would take `1.0` for an integer and `null` for nothing, so integers are
    read here, and everything else is as strict as in a body."""
    integers = _integer_fields(kind)
    for name, value in values.items():
        if name in integers and _INTEGER.fullmatch(value) is not None:
            values[name] = int(value)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise _explained(exc) from None


def _integer_fields(kind: type) -> frozenset[str]:
    found = set()
    for field in msgspec.structs.fields(kind):
        shape = msgspec.inspect.type_info(field.type)
        shapes = shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)
        if any(isinstance(part, msgspec.inspect.IntType) for part in shapes):
            found.add(field.name)
    return frozenset(found)


def refuse_nul(body: bytes, decoded: msgspec.Struct) -> None:
    """For bodies that are stored: PostgreSQL's text cannot hold the character NUL."""
    if b"\\u0000" not in body:
        return
    for field, value in msgspec.to_builtins(decoded).items():
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and "\x00" in text for text in texts):
            raise InvalidRequest("The character U+0000 is not allowed.", param=field)


def _check_depth(body: bytes) -> None:
    # Few brackets cannot nest deeply: almost every body ends here.
    if body.count(b"{") + body.count(b"[") <= DEPTH_MAX:
        return
    brackets = _STRINGS.sub(b"", body).translate(None, _ALL_BUT_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEPTH_MAX:
        raise InvalidRequest(f"The body is nested more than {DEPTH_MAX} levels deep.")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(
                    f"The key {key[:_PARAM_LENGTH_MAX]!r} occurs twice in one object.",
                    param=_showable(key[:_PARAM_LENGTH_MAX]),
                )
            seen.add(key)


def _as_text(number: str) -> str:
    return number


# Numbers stay text: no integer of any length is computed here.
_DUPLICATES = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_int=_as_text, parse_float=_as_text
)


def _check_duplicates(body: bytes) -> None:
    _DUPLICATES.decode(body.decode())


def _explained(exc: msgspec.ValidationError, place: str = "") -> InvalidRequest:
    """msgspec's message with the path taken out of it: `messages[2].role`."""
    text = str(exc)
    path = place
    found = _PATH.search(text)
    if found is not None:
        path = (place + found["path"]).lstrip(".")
        text = text[: found.start()]
    field = _FIELD.search(text)
    if field is not None:
        path = f"{path}.{field['field']}" if path else field["field"]
    param = _showable(path[:_PARAM_LENGTH_MAX]) or None
    message = _showable(text[:500])
    return InvalidRequest(f"{message}." if not message.endswith(".") else message, param=param)


def _showable(text: str) -> str:
    """Escaped lone surrogates and the like must not reach the response."""
    return text.encode("utf-8", "replace").decode()
