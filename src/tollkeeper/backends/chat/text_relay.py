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
# A read that is one chunk, as most are, begins with a size that its length determines. For lengths
# that no chunk has, there is a beginning that none has either.
_ONE_CHUNK_BYTES_MAX = 1024

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def _size_lines() -> list[bytes]:
    lines = [b"\n"] * _ONE_CHUNK_BYTES_MAX
    for size in range(_ONE_CHUNK_BYTES_MAX):
        line = b"%x\r\n" % size
        whole = len(line) + size + len(_LINE_END)
        if whole < _ONE_CHUNK_BYTES_MAX:
            lines[whole] = line
    return lines


_SIZE_LINES = _size_lines()


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
        "_text_from",
        "_text_of",
        "_text_to",
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
        # Where the text is in a record, with its quotes: from its beginning, and from its end.
        self._text_from = self._text_to = 0
        # The number of the piece from which something was to be learned last.
        self._learned_at = -_PIECES_PER_LESSON
        self._lessons_in_vain = 0

    def take(self, data: bytes) -> int:
        """Passes text on, and returns how many bytes of a read are dealt with. The read begins with
        an HTTP chunk, and what is taken ends with one. The reader has to take the rest."""
        size, pieces = len(data), self._pieces
        if size > self._read_bytes_max or self._finished[0] or not self._parser.at_record_start:
            return 0
        line = _SIZE_LINES[size] if size < _ONE_CHUNK_BYTES_MAX else _UNKNOWN
        start = 0
        while start < size:
            if (
                data.startswith(line)
                and data.startswith(self._before, len(line))
                and data.endswith(self._after)
            ):
                written = data[len(line) + self._text_from : self._text_to]
                end = size
            else:
                found = self._find_text(data, start)
                if found is None:
                    break
                written, end = found
            try:
                text = _decode_text(written)
            except ValueError:
                break
            if not text or pieces[0] >= self._pieces_max or not self._write(written):
                break
            pieces[0] += 1
            self._count(text)
            start = end
        return start

    def _find_text(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """The text of the chunk that begins at `start`, in JSON, and where the chunk ends; None where
        it has no text, or not only text."""
        record_at = data.find(_LINE_END, start) + len(_LINE_END)
        end = data.find(_RECORD_END, record_at) + len(_RECORD_END)
        if data[start:record_at] != b"%x\r\n" % max(0, end - record_at - len(_LINE_END)):
            return None
        record = data[record_at:end]
        if record.startswith(self._before) and record.endswith(self._after):
            return record[self._text_from : self._text_to], end
        payload = record[len(_DATA) : -len(_RECORD_END)]
        content = _CONTENT.search(payload)
        if (
            content is None
            or not record.startswith(_DATA)
            or b"\n" in payload
            or b"\r" in payload
            or not _is_utf8(payload)
        ):
            return None
        text = self._text_of(payload)
        if text is None:
            return None
        self._learn(payload, content.span(1), text)
        return _encode(text), end

    def _learn(self, payload: bytes, place: tuple[int, int], text: str) -> None:
        """Remembers what stands around the text, if its place was guessed rightly: another text in
        this place has to be the text of the chunk."""
        if self._lessons_in_vain > _LESSONS_IN_VAIN_MAX:
            return
        pieces = self._pieces[0]
        if pieces < self._learned_at + _PIECES_PER_LESSON:
            self._lessons_in_vain += 1
        self._learned_at = pieces
        before, after = payload[: place[0] + 1], payload[place[1] - 1 :]
        other = "a" if text != "a" else "b"
        if self._text_of(before + other.encode() + after) == other:
            self._before, self._after = _DATA + before, after + _RECORD_END
            self._text_from, self._text_to = len(self._before) - 1, 1 - len(self._after)


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
