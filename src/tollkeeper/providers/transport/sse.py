"""Parses a stream of server-sent events (WHATWG standard) from network chunks. A record is one
server-sent event. Its payload is the text of its data lines, which this module does not interpret.
The parser is stricter than a browser in two ways: a record has a maximum size, and text that is not
UTF-8 is an error (a browser inserts replacement characters). Event names, ids and retry times are
skipped, because they have no meaning in the stream of an answer."""

_BOM = b"\xef\xbb\xbf"
_RECORD_END = b"\n\n"
_COMMON_PREFIX = b"data: "


class MalformedEventStream(Exception):
    """The stream cannot be read any further. `payloads` contains the payloads of the complete
    records that came before the fault in the same chunk."""

    def __init__(self, reason: str, payloads: list[bytes], *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.payloads = payloads
        self.is_too_large = is_too_large


class EventStreamParser:
    """Parses one stream. The payloads do not depend on where the network splits the stream into
    chunks."""

    # A chunk with a line end restarts the idle timeout, even if the chunk completes no record.
    line_end_is_progress = True

    __slots__ = (
        "_after_cr",
        "_pending",
        "_scanned",
        "_started",
        "at_record_start",
        "record_bytes_max",
    )

    def __init__(self, record_bytes_max: int) -> None:
        self.record_bytes_max = record_bytes_max
        # The received part of an incomplete record.
        self._pending = bytearray()
        # The position in `_pending` from which to search for the end of the record.
        self._scanned = 0
        # Whether the byte order mark was skipped, or the stream has none.
        self._started = False
        # Whether the last chunk ended with CR.
        self._after_cr = False
        # Whether the next chunk certainly begins with a new record. False while a byte order mark, or
        # the LF of a CRLF, may come first.
        self.at_record_start = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the payloads of all records that this chunk completes. Raises
        MalformedEventStream."""
        size = len(chunk)
        if (
            not self.at_record_start
            or not chunk.endswith(_RECORD_END)
            or b"\r" in chunk
            or size > self.record_bytes_max
        ):
            return self._feed_general(chunk)
        if chunk.find(b"\n") == size - 2 and chunk.startswith(_COMMON_PREFIX) and chunk.isascii():
            # The most common chunk is one record with one line.
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
        # The added 1 is for the line end of the record's last line. This line end is pending until
        # the blank line after the record arrives.
        if len(self._pending) > self.record_bytes_max + 1:
            raise MalformedEventStream("a record is too large", payloads, is_too_large=True)
        return payloads

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        # A CR at the end of a chunk counts as a line end at once, so that a stream whose lines end
        # with CR only is not delayed. If the next chunk begins with LF, the two are one CRLF, and
        # the LF is removed.
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
        """Removes a byte order mark from the beginning of the stream. Returns False if too few
        bytes have arrived to know whether the stream begins with a byte order mark."""
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
            if len(record) > self.record_bytes_max:
                raise MalformedEventStream("a record is too large", payloads, is_too_large=True)
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
    """Joins the data lines of a record. Returns None for a record without data lines, for example a
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
