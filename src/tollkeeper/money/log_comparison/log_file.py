"""Reads the charged and unsettled calls from request log files."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast
from uuid import UUID

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import PICOUSD_MAX, picousd_from_usd
from tollkeeper.core.runtime.request_log import RequestLine
from tollkeeper.core.views import ReservationStatus
from tollkeeper.money.settlement.reservations import CallKey

# Our own are much shorter. A longer one is unreadable.
LINE_BYTES_MAX = 65_536
# Others are only counted.
UNREADABLE_SHOWN_MAX = 10
_LINES_PER_PROGRESS = 1000
# If the gateway didn't write the line.
_DECODE_ERRORS = (ValueError, RecursionError, msgspec.DecodeError)
_GZIP = b"\x1f\x8b"
_REQUEST = "request"
_REQUEST_ID_VERSION = 7


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """Charged according to the log, or unsettled."""

    key: CallKey
    model: str
    # None if the gateway didn't know it.
    cost_picousd: int | None


class _Line(RequestLine, frozen=True, kw_only=True):
    event: str = ""


class _AnyLine(msgspec.Struct):
    event: str | None = None


_decode = msgspec.json.Decoder(_Line).decode
_decode_any = msgspec.json.Decoder(_AnyLine).decode


@dataclass(slots=True)
class LogReading:
    """`calls` are the charged and unsettled ones; other lines are counted."""

    files: Sequence[Path]
    # Gets the bytes read so far and in all files.
    on_progress: Callable[[int, int], None] = lambda _done, _all: None
    # Other requests and other events.
    other_lines: int = 0
    unreadable_lines: int = 0
    # File, line number and reason.
    unreadable: list[str] = field(default_factory=list)

    def calls(self) -> Iterator[LoggedCall]:
        done, total = 0, max(1, sum(file.stat().st_size for file in self.files))
        for file in self.files:
            with file.open("rb") as raw:
                for number, line in self._lines(file, raw):
                    call = self._read(f"{file}, line {number}", line)
                    if call is not None:
                        yield call
                    if number % _LINES_PER_PROGRESS == 0:
                        self.on_progress(done + raw.tell(), total)
                done += raw.tell()
            self.on_progress(done, total)

    def _lines(self, file: Path, raw: BufferedReader) -> Iterator[tuple[int, bytes]]:
        """Numbered. Only the beginning of a line that's too long."""
        compressed = raw.peek(len(_GZIP)).startswith(_GZIP)
        text = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if compressed else raw
        for number in count(1):
            try:
                line = rest = text.readline(LINE_BYTES_MAX + 1)
                while len(rest) > LINE_BYTES_MAX and not rest.endswith(b"\n"):
                    rest = text.readline(LINE_BYTES_MAX + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
                self._unreadable(f"{file}, line {number}", f"the archive is damaged: {exc}")
                return
            if not line:
                return
            yield number, line

    def _read(self, location: str, line: bytes) -> LoggedCall | None:
        if not line.strip():
            return None
        try:
            call = _charged_call(line)
        except InvalidRequest as exc:
            self._unreadable(location, exc.message)
        except _DECODE_ERRORS as exc:
            if _is_other_event(line):
                self.other_lines += 1
            else:
                self._unreadable(location, str(exc))
        else:
            self.other_lines += call is None
            return call
        return None

    def _unreadable(self, location: str, reason: str) -> None:
        self.unreadable_lines += 1
        if len(self.unreadable) < UNREADABLE_SHOWN_MAX:
            self.unreadable.append(f"{location}: {reason}")


def _is_other_event(line: bytes) -> bool:
    try:
        return len(line) <= LINE_BYTES_MAX and _decode_any(line).event not in (_REQUEST, None)
    except _DECODE_ERRORS:
        return False


def _charged_call(line: bytes) -> LoggedCall | None:
    """None if it was neither charged nor left unsettled. Raises if it's no valid request event."""
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"it has more than {LINE_BYTES_MAX} bytes")
    request = _decode(line)
    if request.event != _REQUEST:
        raise ValueError("it is not a line of the request log")
    if request.settlement not in (ReservationStatus.SETTLED, ReservationStatus.UNSETTLED):
        return None
    settled = request.settlement == ReservationStatus.SETTLED
    if (
        request.organization_id is None
        or request.project_id is None
        or request.api_key_id is None
        or not request.model
        or (settled and request.cost_usd is None)
    ):
        raise ValueError("organization_id, project_id, api_key_id, model or cost_usd is missing")
    identity = UUID(request.request_id)
    if identity.version != _REQUEST_ID_VERSION or "\0" in request.model:
        raise ValueError("its request_id or its model cannot be of a gateway")
    cost = picousd_from_usd(request.cost_usd or "") if settled else None
    if cost is not None and not 0 <= cost <= PICOUSD_MAX:
        raise ValueError("its cost_usd cannot be a cost")
    key = CallKey(
        OrganizationId(request.organization_id),
        identity,
        ProjectId(request.project_id),
        KeyId(request.api_key_id),
    )
    return LoggedCall(key, request.model, cost)
