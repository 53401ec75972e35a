"""Relays text from the backend's connection to the client's connection, without creating events.

The relay is used for chat streams with a single choice. Nearly all records of such a stream do nothing
but add text, and have the same bytes before and after the text as the previous record. For these
records the relay parses only the text, and writes the text to the client as soon as it arrives. All
other records are left to the reader of the stream (`chat/stream.py`), which shares its state with the
relay.
"""

import re
from collections.abc import Callable

import msgspec

from tollkeeper.backends.port import TextWriter

# If more bytes than this arrive at once, the relay leaves them to the reader. The reader splits them,
# and lets other tasks run in between.
_READ_BYTES_MAX = 16 << 10
_LINE_END = b"\r\n"
_DATA = b"data: "
# The blank line that ends a record, and the line end of the HTTP chunk that contains the record.
_RECORD_END = b"\n\n\r\n"
# Finds the text of a record, including its quotes. The pattern may match a wrong position, so its
# result is verified.
_CONTENT = re.compile(rb'"content"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")')
# The relay learns the bytes before and after the text from one record, and guesses that later records
# have the same bytes. The guess has failed if the bytes change within the next `_PIECES_PER_GUESS`
# pieces (records with text), for example because the server adds a random field to each record.
_PIECES_PER_GUESS = 8
# After more failed guesses than this, the relay learns no more.
_FAILED_GUESSES_MAX = 4
# A placeholder for unknown bytes. No record and no size line begins with this byte, so the tests of
# the bytes before the text fail while the bytes are unknown.
_UNKNOWN = b"\n"
# A table (`_SIZE_LINES`) tells whether received data below this length is exactly one HTTP chunk.
_ONE_CHUNK_BYTES_MAX = 1024

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def _size_lines() -> list[bytes]:
    """Returns, for each length of received data, the size line with which the data begins if it is
    exactly one HTTP chunk. A few lengths are impossible for a whole chunk, because its size line gets
    one more digit at some sizes. The entries for these lengths never match."""
    lines = [b"\n"] * _ONE_CHUNK_BYTES_MAX
    for size in range(_ONE_CHUNK_BYTES_MAX):
        line = b"%x\r\n" % size
        whole = len(line) + size + len(_LINE_END)
        if whole < _ONE_CHUNK_BYTES_MAX:
            lines[whole] = line
    return lines


_SIZE_LINES = _size_lines()


class TextRelay:
    """Reads HTTP chunks that contain exactly one record each, with text for the only choice."""

    __slots__ = (
        "__weakref__",
        "_after",
        "_before",
        "_count",
        "_failed_guesses",
        "_finished",
        "_learned_at",
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
        write: TextWriter,
        count: Callable[[str], None],
        *,
        record_bytes_max: int,
        text_of: Callable[[bytes], str | None],
        pieces: list[int],
        finished: list[bool],
        pieces_max: int,
    ) -> None:
        self._write = write
        # Adds the text to the meter, which counts the answer's tokens.
        self._count = count
        self._text_of = text_of
        # The reader shares the next two lists. They have one element, for the only choice.
        self._pieces = pieces
        self._finished = finished
        self._pieces_max = pieces_max
        # A record is not larger than the data that contains it, so this limit also enforces the
        # maximum size of a record.
        self._read_bytes_max = min(_READ_BYTES_MAX, record_bytes_max)
        # The learned bytes of a record before and after its text. They include the text's quotes.
        self._before = self._after = _UNKNOWN
        # The position of the text and its quotes in a record: the start, counted from the beginning
        # of the record, and the end, counted from the end of the record (negative).
        self._text_from = self._text_to = 0
        # The number of pieces when the relay last tried to learn the bytes.
        self._learned_at = -_PIECES_PER_GUESS
        self._failed_guesses = 0

    def take(self, data: bytes) -> int:
        """Relays the text at the beginning of the received data, and returns the number of processed
        bytes. The data has to begin with an HTTP chunk, and the chunk with a record. The processed
        bytes are whole HTTP chunks. The reader has to process the remaining bytes."""
        size, pieces = len(data), self._pieces
        if size > self._read_bytes_max or self._finished[0]:
            return 0
        # The size line, if all data is exactly one HTTP chunk, and the bytes before the text.
        before = _SIZE_LINES[size] if size < _ONE_CHUNK_BYTES_MAX else _UNKNOWN
        before += self._before
        start = 0
        while start < size:
            if data.startswith(before) and data.endswith(self._after):
                # The text includes its quotes.
                json_text, end = data[len(before) - 1 : self._text_to], size
            else:
                text_and_end = self._find_text(data, start)
                if text_and_end is None:
                    break
                json_text, end = text_and_end
            try:
                text = _decode_text(json_text)
            except ValueError:
                break
            if not text or pieces[0] >= self._pieces_max or not self._write(json_text):
                break
            pieces[0] += 1
            self._count(text)
            start = end
        return start

    def forget(self) -> None:
        """Forgets the learned bytes."""
        self._before = self._after = _UNKNOWN

    def _find_text(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """Returns the text of the HTTP chunk that begins at `start`, as a JSON string, and the end of
        the chunk. Returns None if the chunk has no text, or has other content in addition."""
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

    def _learn(self, payload: bytes, span: tuple[int, int], text: str) -> None:
        """Stores the bytes before and after the text, if the pattern has found the right position.
        To verify the position, the method replaces the text there with a different one, and checks
        that `text_of` returns the different text."""
        if self._failed_guesses > _FAILED_GUESSES_MAX:
            return
        pieces = self._pieces[0]
        if pieces < self._learned_at + _PIECES_PER_GUESS:
            self._failed_guesses += 1
        self._learned_at = pieces
        before, after = payload[: span[0] + 1], payload[span[1] - 1 :]
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
