"""Counts requests and writes a log line for each, without text of prompts or answers. The metrics
have no tenant data. Calls are logged when they have ended, other requests when their response has.
Both are buffered shortly, then counted and written together."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby, repeat
from operator import add, attrgetter, floordiv, itemgetter, sub
from time import monotonic
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import msgspec

from tollkeeper.core.activity import RecordColumns
from tollkeeper.core.money import usd_texts
from tollkeeper.core.runtime.output import log_output
from tollkeeper.core.runtime.tallies import (
    CounterTally,
    HistogramTally,
    OpenTally,
    collect_while_alive,
    schedule_write,
    write_while_alive,
)

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_REQUESTS = CounterTally(
    "tollkeeper_requests", "Requests by operation and status.", ["operation", "status"]
)
_DURATIONS = HistogramTally(
    "tollkeeper_request_duration_seconds",
    "Seconds from a request's arrival to the end of its response.",
    ["operation"],
    buckets=_BUCKETS_S,
)
_OPEN_REQUESTS = OpenTally("tollkeeper_open_requests", "Requests being answered.")
# Ended requests that aren't counted yet.
_ENDED_MAX = 256
# Of lines.
_BUFFERED_MAX = 1000


class RequestLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    request_id: str
    operation: str
    status: int
    duration_ms: int
    model: str | None = None
    backend: str | None = None
    replica: str | None = None
    streamed: bool = False
    first_byte_ms: int | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: str | None = None
    settlement: str | None = None
    organization_id: UUID | None = None
    project_id: UUID | None = None
    api_key_id: UUID | None = None
    # Without text of the request.
    param: str | None = None
    message: str | None = None
    # As in every log line.
    event: str = ""
    level: str = ""
    timestamp: str = ""


# Of an activity record, in the order of `RequestLine`; the last one is for the timestamp.
_RECORD_FIELDS = (
    *("request_id", "operation", "status", "duration_us", "model", "backend", "replica"),
    *("streamed", "first_piece_us", "error_code", "prompt_tokens", "completion_tokens"),
    *("cost_picousd", "settlement", "organization_id", "project_id", "key_id"),
    *("error_param", "error_message", "started_at_ms"),
)
json_lines = msgspec.json.Encoder().encode_lines
# Of a `LoggedRequest`.
_EndedRequest: TypeAlias = tuple[str, str, int, float, float, bool]
_operation, _duration = itemgetter(0), itemgetter(1)
_read_request = attrgetter("id", "operation", "status", "opened_at", "ended_at", "is_call")
# Such as `json_lines` or `text_lines`.
Render = Callable[[Sequence[RequestLine]], bytes]


class LoggedRequest(Protocol):
    id: str
    operation: str
    status: int
    # Of `time.monotonic`: what `request_opened` returned, and what `request_ended` sets.
    opened_at: float
    ended_at: float
    # It has started an inference call.
    is_call: bool


def text_lines(lines: Sequence[RequestLine]) -> bytes:
    return "".join(map(_text_line, lines)).encode()


def _text_line(line: RequestLine) -> str:
    clock = datetime.fromisoformat(line.timestamp).astimezone().strftime("%H:%M:%S")
    parts = [clock, line.operation, str(line.status), f"{line.duration_ms} ms"]
    if line.model:
        parts.append(line.model)
    if line.completion_tokens is not None:
        parts.append(f"{line.prompt_tokens}+{line.completion_tokens} tokens")
    if line.cost_usd is not None:
        parts.append(f"{line.cost_usd} USD")
    if line.error is not None:
        parts.append(line.error)
    if line.param is not None:
        parts.append(line.param)
    if line.message is not None:
        parts.append(line.message)
    return "  ".join(parts) + "\n"


# Formatting numbers takes longer.
_MILLISECONDS = tuple(map(".%03dZ".__mod__, range(1000)))


def _timestamps(times_ms: Iterable[int]) -> Iterator[str]:
    seconds, milliseconds = zip(*map(divmod, times_ms, repeat(1000)), strict=True)
    return map(add, map(_second_text, seconds), map(_MILLISECONDS.__getitem__, milliseconds))


@lru_cache(maxsize=4)
def _second_text(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def _lines_of_calls(calls: RecordColumns) -> list[RequestLine]:
    """Column by column, mostly with `map`, which runs in C."""
    columns = {name: calls[name] for name in _RECORD_FIELDS}
    started_ms = columns.pop("started_at_ms")
    durations_ms = columns["duration_us"] = list(_milliseconds(columns["duration_us"]))
    columns["first_piece_us"] = _converted(columns["first_piece_us"], _milliseconds)
    columns["cost_picousd"] = _converted(columns["cost_picousd"], usd_texts)
    timestamps = _timestamps(map(add, started_ms, durations_ms))
    return list(map(RequestLine, *columns.values(), repeat("request"), repeat("info"), timestamps))


def _milliseconds(times_us: Iterable[int]) -> Iterator[int]:
    return map(floordiv, times_us, repeat(1000))


def _converted(
    values: Sequence[Any], convert: Callable[[Iterable[int]], Iterator[Any]]
) -> Sequence[Any]:
    """All together, except None."""
    if None not in values:
        return list(convert(values))
    converted = convert([value for value in values if value is not None])
    return [None if value is None else next(converted) for value in values]


def _lines_of_requests(requests: Sequence[_EndedRequest]) -> list[RequestLine]:
    """Those that are no calls."""
    clock_began_at = time.time() - monotonic()
    timestamps = _timestamps(int((clock_began_at + row[4]) * 1000) for row in requests)
    return [
        RequestLine(
            request_id=request_id,
            operation=operation,
            status=status,
            duration_ms=int((ended_at - opened_at) * 1000),
            event="request",
            level="info",
            timestamp=next(timestamps),
        )
        for request_id, operation, status, opened_at, ended_at, _ in requests
    ]


class RequestLog:
    def __init__(self, render: Render | None) -> None:
        """None: write no lines."""
        self._render = render
        self._lines: list[RequestLine] = []
        # While there are some, a write is scheduled.
        self._ended: list[_EndedRequest] = []
        collect_while_alive(self._count_ended)
        if render is not None:
            write_while_alive(self.write)

    def calls_ended(self, calls: RecordColumns) -> None:
        if self._render is not None:
            self._buffer(_lines_of_calls(calls))

    def request_opened(self) -> float:
        """Returns the start time for `request_ended`."""
        _OPEN_REQUESTS.open += 1
        if not self._ended:
            schedule_write()
        return monotonic()

    def request_ended(self, request: LoggedRequest) -> None:
        """Up to half a second later, it's counted and, if it's no call, logged."""
        ended = self._ended
        if not ended:
            schedule_write()
        request.ended_at = monotonic()
        ended.append(_read_request(request))
        if len(ended) >= _ENDED_MAX:
            self._count_ended()

    def _count_ended(self) -> None:
        requests, self._ended = self._ended, []
        if not requests:
            return
        _, operations, statuses, opened_at, ended_at, are_calls = zip(*requests, strict=True)
        _OPEN_REQUESTS.open -= len(requests)
        # Those of calls come from `calls_ended`.
        if self._render is not None and not all(are_calls):
            pairs = zip(requests, are_calls, strict=True)
            self._buffer(_lines_of_requests([request for request, is_call in pairs if not is_call]))
        _REQUESTS.add_each(zip(operations, statuses, strict=True))
        durations = sorted(zip(operations, map(sub, ended_at, opened_at), strict=True))
        for operation, group in groupby(durations, _operation):
            _DURATIONS.observe((operation,), *map(_duration, group))

    def _buffer(self, lines: list[RequestLine]) -> None:
        self._lines += lines
        if len(self._lines) >= _BUFFERED_MAX:
            self.write()

    def write(self) -> None:
        if not self._lines:
            return
        assert self._render is not None
        lines, self._lines = self._lines, []
        log_output.write(self._render(lines))
