"""Reads content inside a media part: base64, or a `data:` address with base64.

Wires and policies use this one reader, so that a policy judges the same content that a backend
gets.
"""

import re
from urllib.parse import unquote

import msgspec

_ADDRESS = "data:"
_DEFAULT_TYPE = "text/plain"
_BLANKS = re.compile(r"[ \t\r\n\f\v]+")
_STANDARD = str.maketrans("-_", "+/")
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class InlineContent(msgspec.Struct, frozen=True, gc=False):
    # In lower case; empty for base64 without a type.
    media_type: str
    # The parameters of the type, in lower case, such as "charset=utf-8".
    parameters: tuple[str, ...]
    # In the standard alphabet, with padding and without blanks.
    base64: str
    # Decoders differ in their handling of percent signs and the URL-safe alphabet. Without them,
    # every decoder that accepts the text finds the same content.
    is_certain: bool


def is_inline(written: str) -> bool:
    """Tells whether the text is a `data:` address."""
    return written[: len(_ADDRESS)].lower() == _ADDRESS


def read_address(url: str) -> InlineContent | None:
    """Reads a `data:` address like `read_inline`. Returns None for every other address."""
    return read_inline(url) if is_inline(url) else None


def read_inline(written: str) -> InlineContent | None:
    """Returns None if the text has no decodable content: another kind of address, or no base64.
    Accepts line breaks and blanks, the URL-safe alphabet, percent-encoding and missing padding."""
    media_type, body = "", written
    parameters: tuple[str, ...] = ()
    if is_inline(written):
        head, comma, body = written.partition(",")
        media_type, *rest = (word.strip().lower() for word in head[len(_ADDRESS) :].split(";"))
        if not comma or "base64" not in rest:
            return None
        media_type = media_type or _DEFAULT_TYPE
        parameters = tuple(word for word in rest if word != "base64")
    found = _standard_base64(body)
    if found is None:
        return None
    is_certain = not any(sign in body for sign in "%-_")
    return InlineContent(media_type, parameters, found, is_certain)


def _standard_base64(written: str) -> str | None:
    if "%" in written:
        written = unquote(written)
    if not written.isascii():
        return None
    unpadded = _BLANKS.sub("", written).translate(_STANDARD).rstrip("=")
    if len(unpadded) % 4 == 1 or unpadded.encode().translate(None, _ALPHABET):
        return None
    return unpadded + "=" * (-len(unpadded) % 4)
