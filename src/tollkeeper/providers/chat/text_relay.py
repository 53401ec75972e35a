"""Relays text from the backend's connection to the client's without events, for streams with one
choice. Nearly all their records only add text, with the same bytes around it, so only the text is
parsed, and it's written at once. All else is left to the reader (`chat/stream.py`), which shares
its state."""

import re
from collections.abc import Callable

import msgspec

from tollkeeper.core.port import TextWriter

# The reader splits more, and lets other tasks run in between.
_READ_BYTES_MAX = 16 << 10
_LINE_END = b"\r\n"
_DATA = b"data: "
# The blank line, and the line end of its HTTP chunk.
_RECORD_END = b"\n\n\r\n"
# May match a wrong position, so its result is verified.
_CONTENT = re.compile(rb'"content"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")')
# The bytes learned from one record are a guess for the next ones. It has failed if they change
# within this many records with text, for example because the server adds a random field.
_PIECES_PER_GUESS = 8
# After more, the relay learns no more.
_FAILED_GUESSES_MAX = 4
# No record and no size line begins with this, so tests of the bytes before the text fail.
_UNKNOWN = b"\n"
# `_SIZE_LINES` tells for shorter data whether it's exactly one HTTP chunk.
_ONE_CHUNK_BYTES_MAX = 1024

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def _size_lines() -> list[bytes]:
    """By length: how data begins if it's exactly one HTTP chunk. A few lengths are impossible,
    because the size line gets one more digit at some sizes; their entries never match."""
    lines = [b"\n"] * _ONE_CHUNK_BYTES_MAX
    for size in range(_ONE_CHUNK_BYTES_MAX):
        line = b"%x\r\n" % size
        whole = len(line) + size + len(_LINE_END)
        if whole < _ONE_CHUNK_BYTES_MAX:
            lines[whole] = line
    return lines


_SIZE_LINES = _size_lines()


class TextRelay:
    """Takes HTTP chunks of exactly one record with text."""

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
        # For the meter.
        self._count = count
        self._text_of = text_of
        # Shared with the reader; one element each.
        self._pieces = pieces
        self._finished = finished
        self._pieces_max = pieces_max
        # Enforces the maximum record size too: a record isn't larger than its data.
        self._read_bytes_max = min(_READ_BYTES_MAX, record_bytes_max)
        # Learned; they include the text's quotes.
        self._before = self._after = _UNKNOWN
        # Of the text with quotes: from the record's beginning, and from its end (negative).
        self._text_from = self._text_to = 0
        # In pieces, when it last tried to learn.
        self._learned_at = -_PIECES_PER_GUESS
        self._failed_guesses = 0

    def take(self, data: bytes) -> int:
        """Returns how many bytes it processed: whole HTTP chunks. The data must begin with a chunk,
        and that with a record. The rest is for the reader."""
        size, pieces = len(data), self._pieces
        if size > self._read_bytes_max or self._finished[0]:
            return 0
        # The size line, if all data is one HTTP chunk, and the bytes before the text.
        before = _SIZE_LINES[size] if size < _ONE_CHUNK_BYTES_MAX else _UNKNOWN
        before += self._before
        start = 0
        while start < size:
            if data.startswith(before) and data.endswith(self._after):
                # Includes the quotes.
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
        self._before = self._after = _UNKNOWN

    def _find_text(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """The text as a JSON string, and the chunk's end. None if the chunk has no text or anything
        else too."""
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
        """Verifies the pattern's position: `text_of` must return a different text that's put
        there."""
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
