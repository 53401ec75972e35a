"""Parses AWS's binary event stream (`application/vnd.amazon.eventstream`) from network chunks. The
stream consists of frames. A frame has four parts: a prelude (the length of the frame, the length of
its headers, and a checksum of both lengths), headers, a payload, and a checksum of the whole frame.
The parser converts each frame to one JSON record. The record's only field is named after the event
or exception and contains the payload: `{"contentBlockDelta": {…}}`. A frame of the type `error` has
no payload; its record is `{"error": {"code": …, "message": …}}`."""

import re
import struct
import uuid
from zlib import crc32

import msgspec

from tollkeeper.providers.transport.sse import MalformedEventStream

_PRELUDE = struct.Struct(">III")
_CHECKSUM = struct.Struct(">I")
# The number of bytes of a frame that are neither headers nor payload.
_OVERHEAD = _PRELUDE.size + _CHECKSUM.size
_HEADERS_BYTES_MAX = 128 << 10
# Limits of the cache `AwsEventStreamParser._beginnings`: the number of entries, and the length of one
# key (the headers of a frame).
_BEGINNINGS_MAX = 32
_CACHED_HEADERS_BYTES_MAX = 1024
# The valid names of events and exceptions.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
# The formats of integers, by header type. Integers of type 5 and timestamps have the format `_LONG`.
_NUMBERS = {2: struct.Struct(">b"), 3: struct.Struct(">h"), 4: struct.Struct(">i")}
_LONG = struct.Struct(">q")
# The length in front of a header value of the type bytes or string.
_LENGTH = struct.Struct(">H")
# The header types that are not integers.
_TRUE, _FALSE, _BYTES, _STRING, _TIMESTAMP, _UUID = 0, 1, 6, 7, 8, 9
_UUID_BYTES = 16
_encode = msgspec.json.Encoder().encode

HeaderValue = bool | int | bytes | str | uuid.UUID


class _Malformed(Exception):
    """A frame violates the format."""


class _TooLarge(_Malformed):
    """A frame is larger than the gateway accepts."""


class AwsEventStreamParser:
    """Parses one stream. The records do not depend on where the network splits the stream into
    chunks."""

    __slots__ = ("_beginnings", "_frame_length", "_pending", "record_bytes_max")

    # See `RecordParser`. Only a whole frame restarts the idle timeout.
    line_end_is_progress = False
    at_record_start = False

    def __init__(self, record_bytes_max: int) -> None:
        self.record_bytes_max = record_bytes_max
        self._pending = bytearray()
        # The length of the pending frame; 0 until its prelude has arrived.
        self._frame_length = 0
        # A cache that maps the headers of a frame to the result of `_beginning`. The cache stays small,
        # because all frames with the same event type have the same headers.
        self._beginnings: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the records of all frames that this chunk completes. Raises
        MalformedEventStream."""
        pending = self._pending
        pending += chunk
        records: list[bytes] = []
        try:
            while self._is_complete():
                frame = bytes(pending[: self._frame_length])
                del pending[: self._frame_length]
                self._frame_length = 0
                record = self._record(frame)
                if record:
                    records.append(record)
        except _Malformed as error:
            is_too_large = isinstance(error, _TooLarge)
            raise MalformedEventStream(str(error), records, is_too_large=is_too_large) from None
        return records

    def _is_complete(self) -> bool:
        """Tells whether a whole frame has arrived. Checks the prelude of the frame as soon as the
        prelude has arrived. Without this check, a wrong length would let a call wait for bytes that
        never come."""
        pending = self._pending
        if not self._frame_length and len(pending) >= _PRELUDE.size:
            self._frame_length = self._checked_length(bytes(pending[: _PRELUDE.size]))
        return bool(self._frame_length) and len(pending) >= self._frame_length

    def _record(self, frame: bytes) -> bytes:
        """Returns the record of a frame. Returns empty bytes for a frame without a valid name of an
        event or exception. Raises _Malformed."""
        end = len(frame) - _CHECKSUM.size
        if crc32(frame[:end]) != _CHECKSUM.unpack_from(frame, end)[0]:
            raise _Malformed("the checksum of a frame is wrong")
        payload_start = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
        headers = frame[_PRELUDE.size : payload_start]
        beginning = self._beginnings.get(headers)
        if beginning is None:
            beginning = _beginning(read_headers(headers))
            if (
                len(self._beginnings) < _BEGINNINGS_MAX
                and len(headers) <= _CACHED_HEADERS_BYTES_MAX
            ):
                self._beginnings[headers] = beginning
        if not beginning.endswith(b":"):
            # `beginning` is the whole record of an `error` frame, or empty if the frame is ignored.
            return beginning
        payload = frame[payload_start:end] or b"{}"
        if not payload.isascii() and not _is_utf8(payload):
            raise _Malformed("a record is not UTF-8")
        return b"%b%b}" % (beginning, payload)

    def _checked_length(self, prelude: bytes) -> int:
        length, headers_length, checksum = _PRELUDE.unpack(prelude)
        if crc32(prelude[: -_CHECKSUM.size]) != checksum:
            raise _Malformed("the checksum of a frame's beginning is wrong")
        if length > self.record_bytes_max or headers_length > _HEADERS_BYTES_MAX:
            raise _TooLarge("a frame is too large")
        if headers_length + _OVERHEAD > length:
            raise _Malformed("a frame is shorter than its parts")
        return int(length)


def _beginning(headers: dict[str, HeaderValue]) -> bytes:
    """Returns the bytes of a record before its payload. Returns a whole record for a frame of the
    type `error`, which has no payload. Returns empty bytes for a frame without a valid name of an
    event or exception."""
    kind = headers.get(":message-type", "event")
    if kind == "error":
        details = {"code": headers.get(":error-code"), "message": headers.get(":error-message")}
        return b'{"error":%b}' % _encode({name: str(value) for name, value in details.items()})
    name = headers.get(":exception-type" if kind == "exception" else ":event-type")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return b""
    return b'{"%b":' % name.encode("ascii")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_headers(data: bytes) -> dict[str, HeaderValue]:
    """Returns the headers of a frame by name. Raises _Malformed if `data` cannot be parsed."""
    headers: dict[str, HeaderValue] = {}
    position = 0
    try:
        while position < len(data):
            name_end = position + 1 + data[position]
            name = data[position + 1 : name_end].decode()
            headers[name], position = _value(data, name_end)
    except (IndexError, struct.error, UnicodeDecodeError):
        raise _Malformed("the headers of a frame cannot be read") from None
    if position != len(data):
        raise _Malformed("the headers of a frame cannot be read")
    return headers


def _value(data: bytes, position: int) -> tuple[HeaderValue, int]:
    """Returns the value of the header at this position, and the position after the value."""
    kind = data[position]
    position += 1
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, position
    if kind in _NUMBERS:
        number = _NUMBERS[kind]
        return int(number.unpack_from(data, position)[0]), position + number.size
    if kind in (5, _TIMESTAMP):
        return int(_LONG.unpack_from(data, position)[0]), position + _LONG.size
    if kind == _UUID:
        end = position + _UUID_BYTES
        if end > len(data):
            raise IndexError
        return uuid.UUID(bytes=data[position:end]), end
    if kind not in (_BYTES, _STRING):
        raise _Malformed("a header of a frame has an unknown type")
    start = position + _LENGTH.size
    end = start + _LENGTH.unpack_from(data, position)[0]
    if end > len(data):
        raise IndexError
    return (data[start:end] if kind == _BYTES else data[start:end].decode()), end
