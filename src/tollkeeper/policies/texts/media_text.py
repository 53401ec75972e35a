"""Extracts the readable text of an image, a recording or a file for the judge.

Base64 may be text (a note, a table), which is judged. Anything else is reported as unread, and so is what
backends may decode in different ways, though the judge still reads any text in it.
"""

import base64
import codecs
import re
from enum import StrEnum

import msgspec

from tollkeeper.core.inline_content import InlineContent, is_inline, read_inline, slices, unquoted

# The judge reads every other header, because it may have words.
_PLAIN_HEADER = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:; {0,9}charset=[\w-]{1,20})?; {0,9}base64 {0,9}", re.I
)
# Of base64, in which signatures are looked for.
_BEGINNING_LENGTH = 4096
# Shorter base64 may be a word, so the judge sees it undecoded too.
_HIDDEN_LENGTH_MIN = 256
# Shorter lines may be words: base64 encoders break after 64 characters or more.
_LINE_LENGTH_MIN = 60
# Backends read these as text, if they accept them at all.
_TEXT_TYPES = re.compile(
    r"text/(?!rtf|richtext|enriched)[\w.+-]+"
    r"|application/(?:[\w.-]+\+)?(?:json|xml|yaml)"
    r"|application/(?:x-)?(?:ndjson|jsonl|yaml|toml|sql|javascript|ecmascript|typescript|graphql|sh)"
)
# Text if there is no media type. The empty one is for files without a name.
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
# ASCII, but not text. In a PDF, other bytes may come before the signature.
_PDF_SIGNATURE = b"%PDF"
_SIGNATURES = (b"%!PS", b"{\\rtf", b"begin ", b"MIME-Version:")


class UnreadKind(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    SEALED_REASONING = "sealed_reasoning"
    SEARCH_RESULT = "search_result"


class UnreadPart(msgspec.Struct, frozen=True, gc=False):
    """`place` is the position in the client's request."""

    kind: UnreadKind
    place: str


class MediaText(msgspec.Struct, frozen=True, gc=False):
    """`complete`: `texts` has all that a backend can read as text."""

    texts: tuple[str, ...]
    complete: bool


def read_media(content_text: str, filename: str | None = None) -> MediaText:
    """Doesn't fetch remote URLs: the text is then the URL."""
    is_data_url = is_inline(content_text)
    content = read_inline(content_text)
    if content is None:
        # A remote URL, or not base64: a backend may read it as text or decode it in an unknown way.
        readable = unquoted(content_text.partition(",")[2]) if is_data_url else None
        decoded = () if readable is None else (readable.decode("utf-8", "replace"),)
        return MediaText((content_text, *decoded), complete=False)
    header, _, body = content_text.partition(",") if is_data_url else ("", "", content_text)
    shown: tuple[str, ...] = (
        () if not header or _PLAIN_HEADER.fullmatch(header) is not None else (header,)
    )
    text = _decoded(content.base64)
    if len(body) < _HIDDEN_LENGTH_MIN or (text is None and _may_be_words(body, content)):
        shown += (body,)
    if text is None:
        return MediaText(shown, complete=False)
    return MediaText((*shown, text), content.is_certain and _is_text(content, filename))


def _may_be_words(body: str, content: InlineContent) -> bool:
    """Words may happen to be base64."""
    return not content.is_certain or _has_short_line(body.rstrip())


def _has_short_line(body: str) -> bool:
    end_of_line = ""
    for piece in slices(body):
        # Because of the full stop, `split` returns the unfinished line even after white space. Of a long one
        # only the end is kept.
        *lines, continued = f"{end_of_line}{piece}.".split()
        if any(len(line) < _LINE_LENGTH_MIN for line in lines):
            return True
        end_of_line = continued[:-1][-_LINE_LENGTH_MIN:]
    return False


def _decoded(encoded: str) -> str | None:
    """None if it isn't text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: list[str] = []
    try:
        for piece in slices(encoded):
            pieces.append(decoder.decode(base64.b64decode(piece)))
            if "\x00" in pieces[-1]:
                return None
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return "".join(pieces)


def _is_text(content: InlineContent, filename: str | None) -> bool:
    """By media type, file name, charset and signature."""
    if content.media_type:
        if _TEXT_TYPES.fullmatch(content.media_type) is None:
            return False
    elif (filename or "").rpartition(".")[2].lower() not in _TEXT_EXTENSIONS:
        return False
    charsets = {word for word in content.parameters if word.startswith("charset")}
    if not charsets <= _TEXT_CHARSETS:
        return False
    beginning = base64.b64decode(content.base64[:_BEGINNING_LENGTH])
    return _PDF_SIGNATURE not in beginning and not beginning.lstrip().startswith(_SIGNATURES)
