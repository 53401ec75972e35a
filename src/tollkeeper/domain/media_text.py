"""What of an image, a recording or a file can be read as text.

A judge reads text. A file in base64 may be text as well (a note, a table, an SVG image): then its
content is judged. What is no text cannot be judged and is named instead.
"""

import base64
import binascii
import codecs
import re
from enum import StrEnum
from urllib.parse import unquote

import msgspec

# The usual beginning of an address that has its content in itself. It says nothing to a reader.
_PLAIN_HEAD = re.compile(r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:;charset=[\w-]{1,20})?;base64", re.I)
# So many characters are decoded first, because most media are no text from the beginning.
_PEEK_LENGTH = 4096
# Base64 that is shorter is also shown as it is: it may be a word that only looks like base64.
_SHOWN_LENGTH_MAX = 256


class UnreadKind(StrEnum):
    """The kinds of content that a judge may be unable to read."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    SEALED_REASONING = "sealed_reasoning"


class UnreadPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a prompt that no judge reads, and its place in the caller's request."""

    kind: UnreadKind
    place: str


class MediaText(msgspec.Struct, frozen=True, gc=False):
    """What can be read of one medium; `complete` where that is all of it."""

    texts: tuple[str, ...]
    complete: bool


def read_address(url: str) -> MediaText:
    """An address in a media part. Its content is not fetched, so only a `data:` address with text in it
    is complete."""
    if url[:5].lower() != "data:":
        return MediaText((url,), complete=False)
    head, comma, data = url.partition(",")
    if not comma:
        return MediaText((url,), complete=False)
    if not head.lower().endswith(";base64"):
        return MediaText((url, unquote(data)), complete=True)
    shown = () if _PLAIN_HEAD.fullmatch(head) is not None else (head,)
    text = _decoded(data)
    return MediaText(shown if text is None else (*shown, text), complete=text is not None)


def read_data(data: str) -> MediaText:
    """The content of a media part: base64, or a `data:` address. What is neither is shown as it is,
    because a backend may take it for text."""
    if data[:5].lower() == "data:":
        return read_address(data)
    try:
        text = _decoded_strictly(data)
    except binascii.Error:
        return MediaText((data,), complete=True)
    texts = (data,) if len(data) < _SHOWN_LENGTH_MAX else ()
    return MediaText(texts if text is None else (*texts, text), complete=text is not None)


def _decoded(data: str) -> str | None:
    try:
        return _decoded_strictly(data)
    except binascii.Error:
        return data


def _decoded_strictly(data: str) -> str | None:
    """The text in base64, or None where it is no text. Raises binascii.Error for other content."""
    if len(data) > _PEEK_LENGTH:
        beginning = _bytes(data[:_PEEK_LENGTH])
        if not _may_be_text(beginning):
            return None
    content = _bytes(data)
    if not _may_be_text(content[:_PEEK_LENGTH]):
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _bytes(data: str) -> bytes:
    # Encoders break lines after 64 or 76 characters.
    joined = data.replace("\n", "").replace("\r", "")
    if not joined.isascii():
        raise binascii.Error
    unpadded = joined.rstrip("=")
    return base64.b64decode(unpadded + "=" * (-len(unpadded) % 4), validate=True)


def _may_be_text(beginning: bytes) -> bool:
    if b"\x00" in beginning:
        return False
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return True
