"""Parses server-sent events (WHATWG) from network chunks into data payloads. Knows no JSON.

The parser is stricter than a browser in two ways: a record has a maximum size, and text that is
not UTF-8 is an error, where a browser inserts replacement characters. Event names, ids and retry
times are skipped, because they have no meaning in an answer's stream.
"""

_BOM = b"\xef\xbb\xbf"
_RECORD_END = b"\n\n"
_COMMON_PREFIX = b"data: "


class MalformedEventStream(Exception):
    """The stream cannot be read any further. `payloads` are those of this chunk's complete records
    before the fault."""

    def __init__(self, reason: str, payloads: list[bytes]) -> None:
        super().__init__(reason)
        self.payloads = payloads


class EventStreamParser:
    """Returns the same payloads wherever the network splits the stream into chunks."""

    # A single byte is not progress; a line is.
    counts_lines = True

    __slots__ = (
        "_after_cr",
        "_pending",
        "_scanned",
        "_started",
        "at_record_start",
        "frame_bytes_max",
    )

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        # The beginning of an incomplete record, and how far it was searched for its end.
        self._pending = bytearray()
        self._scanned = 0
        self._started = False
        self._after_cr = False
        # Whether the next chunk begins a record: nothing is pending from earlier chunks.
        self.at_record_start = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of every record that this chunk completes."""
        size = len(chunk)
        if (
            not self.at_record_start
            or not chunk.endswith(_RECORD_END)
            or b"\r" in chunk
            or size > self.frame_bytes_max
        ):
            return self._feed_general(chunk)
        if chunk.find(b"\n") == size - 2 and chunk.startswith(_COMMON_PREFIX) and chunk.isascii():
            # By far the most common chunk: one record of one line.
            return [chunk[len(_COMMON_PREFIX) : -2]]
        return self._read_records(chunk[:-2].split(_RECORD_END))

    def _feed_general(self, chunk: bytes) -> list[bytes]:
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
        self.at_record_start = self._started and not self._pending and not self._after_cr
        payloads = self._read_records(records)
        # One byte more than the maximum record, for the line end before the blank line that ends
        # it.
        if len(self._pending) > self.frame_bytes_max + 1:
            raise MalformedEventStream("a record is too large", payloads)
        return payloads

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        # A CR at the end of a chunk ends its line at once, so that a stream with bare CRs is not
        # delayed. If the next chunk begins with LF, that LF belongs to the same line end and is
        # removed.
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
        """Removes a byte order mark. Returns False while too little of the stream has arrived to
        know whether it begins with one."""
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
            if len(record) > self.frame_bytes_max:
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
    """Joins the data lines of a record; returns None for a record without any, such as a
    comment."""
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
