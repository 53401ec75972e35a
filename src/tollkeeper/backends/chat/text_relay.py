"""Passes text on as it comes: from one read of the backend's connection to the caller's, in one call.

Nearly every chunk of a chat stream adds text to its only choice and says nothing else, and has the
same bytes around the text as the chunk before it. Such a chunk needs no task, no event and no JSON
but for its text. Everything else is left to the reader of the stream, whose state the relay shares.
"""

import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import RecordParser

# A read with more than this is left to the reader, which takes turns with other calls.
_READ_BYTES_MAX = 16 << 10
_LINE_END = b"\r\n"
_DATA = b"data: "
# The blank line that ends a record, and the end of the HTTP chunk around it.
_RECORD_END = b"\n\n\r\n"
# The text of a chunk, with its quotes. The pattern only guesses: what it finds is tried out.
_CONTENT = re.compile(rb'"content"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")')
# The bytes around the text are learned from a chunk. Where they seldom stay the same for this many
# pieces, as with servers that add a random field, learning stops after so many attempts.
_PIECES_PER_LESSON = 8
_LESSONS_IN_VAIN_MAX = 4
# Around no text: no record begins like this.
_UNKNOWN = b"\n"
# The sizes of chunks as they are written, for those that are common.
_SIZE_LINES = [b"%x" % size for size in range(1024)]

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class TextSource(Protocol):
    """The reader of a stream, as far as its relay needs it."""

    # By choice: pieces so far, and whether it has come to its end.
    pieces: list[int]
    finished: list[bool]
    pieces_max: int

    def text_of(self, payload: bytes) -> str | None:
        """The text of a record that adds text to the first choice and says nothing else; None for
        any other record. Nothing is counted."""
        ...


class TextRelay:
    """Takes HTTP chunks with one record each that is a piece of text of the only choice."""

    __slots__ = (
        "_after",
        "_before",
        "_count",
        "_finished",
        "_learned_at",
        "_lessons_in_vain",
        "_parser",
        "_pieces",
        "_pieces_max",
        "_read_bytes_max",
        "_text_of",
        "_write",
    )

    def __init__(
        self,
        stream: TextSource,
        parser: RecordParser,
        write: TextWriter,
        count: Callable[[str], None],
    ) -> None:
        self._parser = parser
        self._write = write
        self._count = count
        self._text_of = stream.text_of
        # Shared with the reader.
        self._pieces = stream.pieces
        self._finished = stream.finished
        self._pieces_max = stream.pieces_max
        # With the size of a read, that of its records is bounded too.
        self._read_bytes_max = min(_READ_BYTES_MAX, parser.frame_bytes_max)
        # The bytes of a record before and behind its text. Both have the quote beside the text.
        self._before = self._after = _UNKNOWN
        # The number of the piece from which they were learned.
        self._learned_at = -_PIECES_PER_LESSON
        self._lessons_in_vain = 0

    def take(self, data: bytes) -> int:
        """Passes text on, and returns how many bytes of a read are dealt with. The read begins with
        an HTTP chunk, and what is taken ends with one. The reader has to take the rest."""
        size = len(data)
        if size > self._read_bytes_max or self._finished[0] or not self._parser.at_record_start:
            return 0
        pieces, start = self._pieces, 0
        while start < size:
            line_end = data.find(_LINE_END, start)
            record_at = line_end + 2
            text_end, before = -1, self._before
            if data.startswith(before, record_at):
                text_at = record_at + len(before)
                text_end = data.find(self._after, text_at)
            if text_end >= 0:
                written = data[text_at - 1 : text_end + 1]
                end = text_end + len(self._after)
            else:
                found = self._find_text(data, record_at)
                if found is None:
                    break
                written, end = found
            chunk_bytes = end - record_at - 2
            size_line = _SIZE_LINES[chunk_bytes] if chunk_bytes < 1024 else b"%x" % chunk_bytes
            if data[start:line_end] != size_line or pieces[0] >= self._pieces_max:
                break
            try:
                text = _decode_text(written)
            except ValueError:
                break
            if not text or not self._write(written):
                break
            self._count(text)
            pieces[0] += 1
            start = end
        return start

    def _find_text(self, data: bytes, record_at: int) -> tuple[bytes, int] | None:
        """The text of a record that is unlike those before it, in JSON, and where its chunk ends."""
        record_end = data.find(_RECORD_END, record_at)
        if record_end < 0 or not data.startswith(_DATA, record_at):
            return None
        payload = data[record_at + len(_DATA) : record_end]
        content = _CONTENT.search(payload)
        if content is None or b"\n" in payload or b"\r" in payload or not _is_utf8(payload):
            return None
        text = self._text_of(payload)
        if text is None:
            return None
        self._learn(payload, content.span(1), text)
        return _encode(text), record_end + len(_RECORD_END)

    def _learn(self, payload: bytes, place: tuple[int, int], text: str) -> None:
        """Remembers what stands around the text, if its place was guessed rightly: another text in
        this place has to be the text of the chunk."""
        if self._lessons_in_vain > _LESSONS_IN_VAIN_MAX:
            return
        pieces = self._pieces[0]
        if pieces < self._learned_at + _PIECES_PER_LESSON:
            self._lessons_in_vain += 1
        before, after = payload[: place[0] + 1], payload[place[1] - 1 :]
        other = "a" if text != "a" else "b"
        if self._text_of(before + other.encode() + after) == other:
            self._learned_at = pieces
            self._before, self._after = _DATA + before, after + _RECORD_END


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
