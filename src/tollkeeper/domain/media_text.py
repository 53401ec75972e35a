"""Extracts the readable text of an image, a recording or a file.

A judge reads text. A file in base64 may be text too (a note, a table): then its content is judged.
Other content, or content that may be decoded in several ways, cannot be judged and is named
instead.
"""

import base64
import codecs
import re
from enum import StrEnum
from urllib.parse import unquote

import msgspec

from tollkeeper.domain.inline_content import InlineContent, is_inline, read_inline

# The usual beginning of a `data:` address, which contains no words.
_PLAIN_HEADER = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:; {0,9}charset=[\w-]{1,20})?; {0,9}base64 {0,9}", re.I
)
# The number of base64 characters to decode first, because most media are recognizably not text.
_PEEK_LENGTH = 4096
# Shorter base64 is also shown undecoded, because it may be a word.
_SHOWN_LENGTH_MAX = 256
# Encoders break lines after 64 characters or more. Text between shorter breaks may be words.
_LINE_LENGTH_MIN = 60
# Types whose content a backend reads as text, if it accepts them.
_TEXT_TYPES = re.compile(
    r"text/(?!rtf|richtext|enriched)[\w.+-]+"
    r"|application/(?:[\w.-]+\+)?(?:json|xml|yaml)"
    r"|application/(?:x-)?(?:ndjson|jsonl|yaml|toml|sql|javascript|ecmascript|typescript|graphql|sh)"
)
# For content without a type. A file may have no name.
_TEXT_EXTENSIONS = frozenset(
    {
        *("", "txt", "text", "md", "csv", "tsv", "json", "jsonl", "xml", "yaml", "yml", "toml"),
        *(
            "log",
            "html",
            "htm",
            "css",
            "js",
            "ts",
            "py",
            "java",
            "c",
            "h",
            "cpp",
            "go",
            "rs",
            "sql",
        ),
    }
)
_TEXT_CHARSETS = frozenset({"charset=utf-8", "charset=utf8", "charset=us-ascii", "charset=ascii"})
# Formats that can be written in ASCII but are not text. A PDF may begin a little later.
_PDF_SIGNATURE = b"%PDF"
_SIGNATURES = (b"%!PS", b"{\\rtf", b"begin ", b"MIME-Version:")


class UnreadKind(StrEnum):
    """Lists the kinds of content that a judge may be unable to read."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    SEALED_REASONING = "sealed_reasoning"


class UnreadPart(msgspec.Struct, frozen=True, gc=False):
    """Names a part of a prompt that no judge reads, and its place in the client's request."""

    kind: UnreadKind
    place: str


class MediaText(msgspec.Struct, frozen=True, gc=False):
    """Contains the readable text of one medium. It is complete if a backend that reads the medium
    as text cannot read anything else."""

    texts: tuple[str, ...]
    complete: bool


def read_media(written: str, filename: str | None = None) -> MediaText:
    """Reads an address or the base64 of a media part. Does not fetch remote addresses."""
    is_address = is_inline(written)
    content = read_inline(written)
    if content is None:
        # A backend may read this content as text, or may decode it in an unknown way.
        unquoted = (unquote(written.partition(",")[2]),) if is_address else ()
        return MediaText((written, *unquoted), complete=False)
    head, _, body = written.partition(",") if is_address else ("", "", written)
    shown: tuple[str, ...] = (
        () if not head or _PLAIN_HEADER.fullmatch(head) is not None else (head,)
    )
    text = _decoded(content.base64)
    if len(body) < _SHOWN_LENGTH_MAX or (text is None and _may_be_words(body, content)):
        shown += (body,)
    if text is None:
        return MediaText(shown, complete=False)
    return MediaText((*shown, text), content.is_certain and _is_text(content, filename))


def _may_be_words(body: str, content: InlineContent) -> bool:
    """Tells whether the body may be words that happen to consist of base64 letters."""
    return not content.is_certain or any(len(line) < _LINE_LENGTH_MIN for line in body.split()[:-1])


def _decoded(encoded: str) -> str | None:
    """Returns the text in base64, or None if it is not text."""
    if not _may_be_text(base64.b64decode(encoded[:_PEEK_LENGTH])):
        return None
    content = base64.b64decode(encoded)
    if b"\x00" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _may_be_text(beginning: bytes) -> bool:
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return True


def _is_text(content: InlineContent, filename: str | None) -> bool:
    """Tells by type and signature whether decodable content is a text."""
    if content.media_type:
        if _TEXT_TYPES.fullmatch(content.media_type) is None:
            return False
    elif (filename or "").rpartition(".")[2].lower() not in _TEXT_EXTENSIONS:
        return False
    charsets = {word for word in content.parameters if word.startswith("charset")}
    if not charsets <= _TEXT_CHARSETS:
        return False
    beginning = base64.b64decode(content.base64[:_PEEK_LENGTH])
    return _PDF_SIGNATURE not in beginning and not beginning.lstrip().startswith(_SIGNATURES)
