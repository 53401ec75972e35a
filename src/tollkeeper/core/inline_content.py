"""Reads base64, or a `data:` URL with base64. Policies and wires both use it, so a policy judges what a
backend receives."""

from collections.abc import Iterator
from typing import AnyStr
from urllib.parse import unquote_to_bytes

import msgspec

_DATA_PREFIX = "data:"
_DEFAULT_TYPE = "text/plain"
_WHITE_SPACE = b" \t\r\n\f\v"
_URL_SAFE_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# One operation on long content would block all other threads. A multiple of 4, so each slice can be decoded.
_SLICE_LENGTH = 1 << 16
# More aren't decoded: it would take long, and many times the text's memory. Escapes that base64 needs don't
# count.
_PERCENT_SIGNS_MAX = 4096
_ESCAPES_IN_BASE64 = (
    *(("%2B", "+"), ("%2b", "+"), ("%2F", "/"), ("%2f", "/"), ("%3D", "="), ("%3d", "=")),
    *(("%0A", "\n"), ("%0a", "\n"), ("%0D", "\n"), ("%0d", "\n"), ("%20", " ")),
)
# From "data:" to the comma.
_HEADER_LENGTH_MAX = 1024


class InlineContent(msgspec.Struct, frozen=True, gc=False):
    # In lower case; empty without one.
    media_type: str
    # In lower case, such as "charset=utf-8".
    parameters: tuple[str, ...]
    # In the standard alphabet, with padding, without white space.
    base64: str
    # Every decoder that accepts the text decodes the same. They differ on percent signs and the URL-safe
    # alphabet.
    is_certain: bool


def is_inline(text: str) -> bool:
    return text[: len(_DATA_PREFIX)].lower() == _DATA_PREFIX


def read_address(url: str) -> InlineContent | None:
    """Returns None for every URL but `data:`."""
    return read_inline(url) if is_inline(url) else None


def read_inline(text: str) -> InlineContent | None:
    """Accepts white space, the URL-safe alphabet, percent-encoding and missing padding. None for any other
    text, and for a very long header or very many percent signs."""
    media_type, body = "", text
    parameters: tuple[str, ...] = ()
    if is_inline(text):
        header, comma, body = text.partition(",")
        if len(header) > _HEADER_LENGTH_MAX:
            return None
        fields = header[len(_DATA_PREFIX) :].split(";")
        media_type, *options = (field.strip().lower() for field in fields)
        if not comma or "base64" not in options:
            return None
        media_type = media_type or _DEFAULT_TYPE
        parameters = tuple(option for option in options if option != "base64")
    found = _standard_base64(body)
    if found is None:
        return None
    is_certain = not any(sign in body for sign in "%-_")
    return InlineContent(media_type, parameters, found, is_certain)


def unquoted(text: str) -> bytes | None:
    """None for too many percent signs."""
    if text.count("%") > _PERCENT_SIGNS_MAX:
        return None
    return unquote_to_bytes(text.encode("utf-8", "replace"))


def slices(content: AnyStr) -> Iterator[AnyStr]:
    for start in range(0, len(content), _SLICE_LENGTH):
        yield content[start : start + _SLICE_LENGTH]


def _standard_base64(text: str) -> str | None:
    if "%" in text:
        for escape, character in _ESCAPES_IN_BASE64:
            text = text.replace(escape, character)
    encoded = unquoted(text)
    if encoded is None:
        return None
    standard = (piece.translate(_URL_SAFE_TO_STANDARD, _WHITE_SPACE) for piece in slices(encoded))
    unpadded = b"".join(standard).rstrip(b"=")
    if len(unpadded) % 4 == 1 or any(
        piece.translate(None, _ALPHABET) for piece in slices(unpadded)
    ):
        return None
    return (unpadded + b"=" * (-len(unpadded) % 4)).decode()
