"""What of an image, a recording or a file can be read as text.

A judge reads text. A file in base64 may be text as well (a note, a table): then its content is judged.
What is no text, or may be decoded in several ways, cannot be judged and is named instead.
"""

import base64
import codecs
import re
from enum import StrEnum
from urllib.parse import unquote

import msgspec

from tollkeeper.domain.inline_content import InlineContent, is_inline, read_inline

# The usual beginning of an address that has its content in itself. It says nothing to a reader.
_PLAIN_HEAD = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:; {0,9}charset=[\w-]{1,20})?; {0,9}base64 {0,9}", re.I
)
# So many characters of base64 are decoded first, because most media are no text from the beginning.
_PEEK_LENGTH = 4096
# Base64 that is shorter is also shown as it is, because it may be a word.
_SHOWN_LENGTH_MAX = 256
# Encoders break lines after 64 characters or more. What is between shorter breaks may be words.
_LINE_LENGTH_MIN = 60
# The types whose content a backend takes for text, if it takes them at all.
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
# Formats that can be written in ASCII, and are no text all the same. A PDF may begin a little later.
_PDF_SIGNATURE = b"%PDF"
_SIGNATURES = (b"%!PS", b"{\\rtf", b"begin ", b"MIME-Version:")


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
    """What can be read of one medium. It is complete if a backend that takes the medium for a text
    cannot read anything else."""

    texts: tuple[str, ...]
    complete: bool


def read_media(written: str, filename: str | None = None) -> MediaText:
    """Reads an address or the base64 of a media part. An address elsewhere is not fetched."""
    is_address = is_inline(written)
    content = read_inline(written)
    if content is None:
        # A backend may take it for text, or may decode it in a way that we do not know.
        unquoted = (unquote(written.partition(",")[2]),) if is_address else ()
        return MediaText((written, *unquoted), complete=False)
    head, _, body = written.partition(",") if is_address else ("", "", written)
    shown: tuple[str, ...] = () if not head or _PLAIN_HEAD.fullmatch(head) is not None else (head,)
    text = _decoded(content.base64)
    if len(body) < _SHOWN_LENGTH_MAX or (text is None and _may_be_words(body, content)):
        shown += (body,)
    if text is None:
        return MediaText(shown, complete=False)
    return MediaText((*shown, text), content.is_certain and _is_text(content, filename))


def _may_be_words(body: str, content: InlineContent) -> bool:
    """Tells whether the body may be words that happen to have the letters of base64."""
    return not content.is_certain or any(len(line) < _LINE_LENGTH_MIN for line in body.split()[:-1])


def _decoded(encoded: str) -> str | None:
    """The text in base64, or None if it is no text."""
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
    """Tells by type and signature whether content that can be decoded as text is a text."""
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
