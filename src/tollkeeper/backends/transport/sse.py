"""Server-sent events from network chunks to data payloads, by the WHATWG rules. Knows no JSON.

Two things are stricter than in a browser: a record has a largest size, and text that is not UTF-8
is an error instead of replacement characters. Event names, ids and retry times have no meaning to
a chat stream and are read over.
"""

_BOM = b"\xef\xbb\xbf"
_RECORD_END = b"\n\n"
_COMMON_PREFIX = b"data: "


class MalformedEventStream(Exception):
    """The stream cannot be read on; `payloads` are those that came whole before that place."""

    def __init__(self, reason: str, payloads: list[bytes]) -> None:
        super().__init__(reason)
        self.payloads = payloads


class EventStreamParser:
    """Takes the stream in any cuts and gives the same payloads for all of them."""

    __slots__ = ("_after_cr", "_between", "_frame_bytes_max", "_pending", "_scanned", "_started")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        # The beginning of a record whose end has not come, and how far it was searched for one.
        self._pending = bytearray()
        self._scanned = 0
        self._started = False
        self._after_cr = False
        # All that came so far were whole records with plain line ends.
        self._between = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every record that this chunk completes."""
        size = len(chunk)
        if (
            not self._between
            or not chunk.endswith(_RECORD_END)
            or b"\r" in chunk
            or size > self._frame_bytes_max
        ):
            return self._feed_any(chunk)
        if chunk.find(b"\n") == size - 2 and chunk.startswith(_COMMON_PREFIX) and chunk.isascii():
            # By far the most common chunk: one record of one line.
            return [chunk[len(_COMMON_PREFIX) : -2]]
        return self._read_records(chunk[:-2].split(_RECORD_END))

    def _feed_any(self, chunk: bytes) -> list[bytes]:
        chunk = self._with_plain_line_ends(chunk)
        pending = self._pending
        pending += chunk
        if not self._started and not self._skip_byte_order_mark():
            return []
        if pending.find(_RECORD_END, self._scanned) < 0:
            self._scanned = max(0, len(pending) - 1)
            records = []
        else:
            *records, rest = bytes(pending).split(_RECORD_END)
            self._pending = bytearray(rest)
            self._scanned = max(0, len(rest) - 1)
        self._between = self._started and not self._pending and not self._after_cr
        payloads = self._read_records(records)
        # One line end more than a record may have: the first half of the blank line after it.
        if len(self._pending) > self._frame_bytes_max + 1:
            raise MalformedEventStream("a record is too large", payloads)
        return payloads

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        # A CR ends its line at once. Should the LF of a CRLF come with the next chunk, it is
        # swallowed there, so a stream with bare CRs is not held back.
        ends_with_cr = chunk.endswith(b"\r")
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        elif not chunk:
            return chunk
        self._after_cr = ends_with_cr
        if b"\r" not in chunk:
            return chunk
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _skip_byte_order_mark(self) -> bool:
        """Whether the beginning is long enough to know; removes a mark that is there."""
        pending = self._pending
        if len(pending) < len(_BOM) and _BOM.startswith(pending):
            return False
        if pending.startswith(_BOM):
            del pending[: len(_BOM)]
        self._started = True
        return True

    def _read_records(self, records: list[bytes]) -> list[bytes]:
        payloads: list[bytes] = []
        for record in records:
            if len(record) > self._frame_bytes_max:
                raise MalformedEventStream("a record is too large", payloads)
            if not record.isascii() and not _is_utf8(record):
                raise MalformedEventStream("a record is not UTF-8", payloads)
            if record.startswith(_COMMON_PREFIX) and b"\n" not in record:
                payloads.append(record[len(_COMMON_PREFIX) :])
                continue
            payload = _data_of(record)
            if payload is not None:
                payloads.append(payload)
        return payloads


def _data_of(record: bytes) -> bytes | None:
    """The data lines of a record, joined; None where there is none (a comment, an empty line)."""
    values = []
    for line in record.split(b"\n"):
        if line.startswith(b"data:"):
            value = line[5:]
            values.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":
            values.append(b"")
    return b"\n".join(values) if values else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
