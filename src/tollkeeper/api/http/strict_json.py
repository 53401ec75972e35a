"""Decodes JSON strictly: no duplicate keys, bounded structure, errors with the path of the field.

msgspec checks syntax, types and bounds in one pass and names the path in its error. It silently
keeps the last of duplicate keys, so a second pass looks for duplicates.
"""

import json
import re
from typing import Any, TypeVar

import msgspec

from tollkeeper.api.http.json_bounds import check_bounds
from tollkeeper.domain.errors import InvalidRequest

T = TypeVar("T")

# Of a body, if the caller of `decode` names no other number.
_ELEMENTS_MAX = 100_000
_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*?)`", re.DOTALL)
_PARAM_LENGTH_MAX = 200
_BLANKS = " \t\r\n"
# Up to 18 digits, which is more than any bound needs. Other values stay text and are refused.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def decode(body: bytes, decoder: msgspec.json.Decoder[T], elements_max: int = _ELEMENTS_MAX) -> T:
    """The decoded body, or InvalidRequest with the path of the field in `param`."""
    check_bounds(body, elements_max)
    return decode_bounded(body, decoder)


def decode_bounded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The same for a body that is known to be inside of its bounds."""
    try:
        decoded = decoder.decode(body)
        _check_duplicates(body)
    except msgspec.ValidationError as exc:
        error = _invalid_request(exc)
        hint = getattr(decoder.type, "hints", {}).get(error.param)
        raise error if hint is None else InvalidRequest(hint, param=error.param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    return decoded


def decode_within(part: msgspec.Raw, decoder: msgspec.json.Decoder[T], place: str) -> T:
    """Decodes a part that `decode` left raw. Errors name the part's place in the body."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not valid JSON: {exc}", param=place) from None


def convert_within(value: object, kind: type[T], place: str) -> T:
    """Like `decode_within`, for a part that is already decoded but whose types are not checked."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc, place) from None


def convert(values: dict[str, Any], kind: type[T]) -> T:
    """Checks query parameters, which arrive as text, with the same errors as a body.

    msgspec's lax mode would accept `1.0` as an integer and `null` as None. This function therefore
    converts integers itself and uses the strict mode."""
    integers = _integer_fields(kind)
    for name, value in values.items():
        if name in integers and _INTEGER.fullmatch(value) is not None:
            values[name] = int(value)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise _invalid_request(exc) from None


def _integer_fields(kind: type) -> frozenset[str]:
    names = set()
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        if any(isinstance(member, msgspec.inspect.IntType) for member in members):
            names.add(field.name)
    return frozenset(names)


def refuse_nul(body: bytes, decoded: msgspec.Struct) -> None:
    """Refuses U+0000 in a body that is stored, because PostgreSQL's text type cannot contain it."""
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


def _as_text(number: str) -> str:
    return number


# Numbers stay text, because Python refuses to convert very long integers.
_DUPLICATE_FINDER = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_int=_as_text, parse_float=_as_text
)


def _check_duplicates(body: bytes) -> None:
    """For a body that is valid JSON, as msgspec has found it to be."""
    _DUPLICATE_FINDER.raw_decode(body.decode().lstrip(_BLANKS))


def _invalid_request(exc: msgspec.ValidationError, place: str = "") -> InvalidRequest:
    """Moves the path, such as `messages[2].role`, from msgspec's message into `param`."""
    text = str(exc)
    path = place
    match = _PATH.search(text)
    if match is not None:
        path = (place + match["path"]).lstrip(".")
        text = text[: match.start()]
    field = _FIELD.search(text)
    if field is not None:
        path = f"{path}.{field['field']}" if path else field["field"]
    param = _encodable(path[:_PARAM_LENGTH_MAX]) or None
    message = _encodable(text[:500])
    return InvalidRequest(f"{message}." if not message.endswith(".") else message, param=param)


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded as UTF-8 in the response."""
    return text.encode("utf-8", "replace").decode()
