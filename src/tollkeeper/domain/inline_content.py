"""Reads the content of a media part from base64, or from a `data:` URL with base64.

Policies and wires (protocols towards model servers) both use this module, so that a policy judges
the same content that a backend receives.
"""

import re
from urllib.parse import unquote

import msgspec

_DATA_PREFIX = "data:"
_DEFAULT_TYPE = "text/plain"
_WHITE_SPACE = re.compile(r"[ \t\r\n\f\v]+")
_URL_SAFE_TO_STANDARD = str.maketrans("-_", "+/")
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class InlineContent(msgspec.Struct, frozen=True, gc=False):
    # The media type in lower case; empty for base64 without a media type.
    media_type: str
    # The parameters of the media type in lower case, such as "charset=utf-8".
    parameters: tuple[str, ...]
    # The content as base64 in the standard alphabet, with padding and without white space.
    base64: str
    # Whether every decoder that accepts the text decodes the same content. Decoders differ in their
    # handling of percent signs and of the URL-safe alphabet, so a text that uses one of these is
    # not certain.
    is_certain: bool


def is_inline(text: str) -> bool:
    """Tells whether the text is a `data:` URL."""
    return text[: len(_DATA_PREFIX)].lower() == _DATA_PREFIX


def read_address(url: str) -> InlineContent | None:
    """Reads a `data:` URL like `read_inline`. Returns None for every other URL."""
    return read_inline(url) if is_inline(url) else None


def read_inline(text: str) -> InlineContent | None:
    """Reads base64, or a `data:` URL with base64. Accepts white space, the URL-safe alphabet,
    percent-encoding and missing padding. Returns None for any other text."""
    media_type, body = "", text
    parameters: tuple[str, ...] = ()
    if is_inline(text):
        header, comma, body = text.partition(",")
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


def _standard_base64(text: str) -> str | None:
    if "%" in text:
        text = unquote(text)
    if not text.isascii():
        return None
    unpadded = _WHITE_SPACE.sub("", text).translate(_URL_SAFE_TO_STANDARD).rstrip("=")
    if len(unpadded) % 4 == 1 or unpadded.encode().translate(None, _ALPHABET):
        return None
    return unpadded + "=" * (-len(unpadded) % 4)
