"""Extracts the readable text from an image, a recording or a file.

The judge, which is the model that answers policy questions, can only read text. The base64 content
of a file may be text (a note, a table), which is then judged. Content that is not text is reported
as unread. Content that backends may decode in different ways is also reported as unread, but the
judge still reads any text found in it.
"""

import base64
import codecs
import re
from enum import StrEnum

import msgspec

from tollkeeper.domain.inline_content import (
    InlineContent,
    is_inline,
    read_inline,
    slices,
    unquoted,
)

# The usual header of a `data:` URL. The judge reads every other header, because it may contain
# words.
_PLAIN_HEADER = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:; {0,9}charset=[\w-]{1,20})?; {0,9}base64 {0,9}", re.I
)
# The number of base64 characters in which a signature is searched.
_BEGINNING_LENGTH = 4096
# Base64 shorter than this is also shown to the judge undecoded, because it may be a word.
_HIDDEN_LENGTH_MIN = 256
# Lines shorter than this may be words, because base64 encoders break lines after 64 characters or
# more.
_LINE_LENGTH_MIN = 60
# The media types whose content a backend reads as text, if it accepts them at all.
_TEXT_TYPES = re.compile(
    r"text/(?!rtf|richtext|enriched)[\w.+-]+"
    r"|application/(?:[\w.-]+\+)?(?:json|xml|yaml)"
    r"|application/(?:x-)?(?:ndjson|jsonl|yaml|toml|sql|javascript|ecmascript|typescript|graphql|sh)"
)
# The extensions of file names that count as text if the content has no media type. The empty
# extension is for files without a name.
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
# The first bytes of formats that may consist of ASCII characters but are not text. In a PDF, other
# bytes may precede the signature.
_PDF_SIGNATURE = b"%PDF"
_SIGNATURES = (b"%!PS", b"{\\rtf", b"begin ", b"MIME-Version:")


class UnreadKind(StrEnum):
    """Lists the kinds of content that a judge may be unable to read."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    SEALED_REASONING = "sealed_reasoning"
    SEARCH_RESULT = "search_result"


class UnreadPart(msgspec.Struct, frozen=True, gc=False):
    """Identifies a part of a prompt that no judge can read. `place` is the position in the client's
    request."""

    kind: UnreadKind
    place: str


class MediaText(msgspec.Struct, frozen=True, gc=False):
    """Contains the readable text of one medium. `complete` means that `texts` contains everything
    that a backend can read from the medium as text."""

    texts: tuple[str, ...]
    complete: bool


def read_media(content_text: str, filename: str | None = None) -> MediaText:
    """Reads the URL or the base64 content of a media part. Does not fetch remote URLs: the result
    then contains the URL itself."""
    is_data_url = is_inline(content_text)
    content = read_inline(content_text)
    if content is None:
        # The text is a remote URL, or content that is not base64. A backend may read such content
        # as text or decode it in an unknown way.
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
    """Tells whether the body may be words that happen to consist of base64 characters."""
    return not content.is_certain or _has_short_line(body.rstrip())


def _has_short_line(body: str) -> bool:
    """Tells whether any line except the last is short."""
    end_of_line = ""
    for piece in slices(body):
        # Because of the full stop, `split` returns the unfinished last line even if the slice ends with
        # white space. Only the end of a long line is kept, because its length does not matter.
        *lines, continued = f"{end_of_line}{piece}.".split()
        if any(len(line) < _LINE_LENGTH_MIN for line in lines):
            return True
        end_of_line = continued[:-1][-_LINE_LENGTH_MIN:]
    return False


def _decoded(encoded: str) -> str | None:
    """Decodes base64 to text; returns None if the content is not text."""
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
    """Tells by media type, file name, charset and signature whether decoded content is really
    text."""
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
