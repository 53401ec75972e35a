"""Relays text from one read of the backend's connection to the client's, in one call.

Nearly every chunk of a chat stream only adds text to its only choice, and has the same bytes around
the text as the previous chunk. Such a chunk needs no task, no event and no JSON parsing except for
its text. The reader of the stream handles everything else; the relay shares its state.
"""

import re
from collections.abc import Callable

import msgspec

from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import RecordParser

# A larger read is left to the reader, which takes turns with other calls.
_READ_BYTES_MAX = 16 << 10
_LINE_END = b"\r\n"
_DATA = b"data: "
# The blank line that ends a record, and the end of the HTTP chunk around it.
_RECORD_END = b"\n\n\r\n"
# The text of a chunk, with its quotes. The pattern only guesses: its result is verified.
_CONTENT = re.compile(rb'"content"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")')
# The bytes around the text are learned from a chunk. If they seldom stay the same for this many
# pieces, for example because a server adds a random field, learning stops after this many failed
# attempts.
_PIECES_PER_GUESS = 8
_FAILED_GUESSES_MAX = 4
# No record begins like this, so it matches nothing.
_UNKNOWN = b"\n"
# Most reads are one chunk, and its length determines the size line at its beginning. Lengths that
# no chunk has get a line that never matches.
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


class TextRelay:
    """Reads HTTP chunks with one record each that is a piece of text of the only choice."""

    __slots__ = (
        "_after",
        "_before",
        "_count",
        "_failed_guesses",
        "_finished",
        "_learned_at",
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
        parser: RecordParser,
        write: TextWriter,
        count: Callable[[str], None],
        *,
        text_of: Callable[[bytes], str | None],
        pieces: list[int],
        finished: list[bool],
        pieces_max: int,
    ) -> None:
        self._parser = parser
        self._write = write
        self._count = count
        self._text_of = text_of
        # Shared with the reader.
        self._pieces = pieces
        self._finished = finished
        self._pieces_max = pieces_max
        # The size of a read also limits that of its records.
        self._read_bytes_max = min(_READ_BYTES_MAX, parser.frame_bytes_max)
        # The bytes of a record before and after its text, including the quotes.
        self._before = self._after = _UNKNOWN
        # The position of the text in a record, with its quotes: from the beginning, and from the
        # end.
        self._text_from = self._text_to = 0
        # The number of the piece from which the last attempt to learn was made.
        self._learned_at = -_PIECES_PER_GUESS
        self._failed_guesses = 0

    def take(self, data: bytes) -> int:
        """Relays text, and returns how many bytes of a read are processed. The read begins with an
        HTTP chunk, and the processed part ends with one. The reader has to process the rest."""
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
        """Returns the text of the chunk that begins at `start`, in JSON, and the end of the chunk;
        None if it has no text, or other content too."""
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
        """Stores the bytes around the text if its position was guessed correctly: another text at
        this position has to be the text of the chunk."""
        if self._failed_guesses > _FAILED_GUESSES_MAX:
            return
        pieces = self._pieces[0]
        if pieces < self._learned_at + _PIECES_PER_GUESS:
            self._failed_guesses += 1
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
