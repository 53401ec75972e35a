"""The log of requests: one line for each, with ids and numbers only; no text of a caller.

A request that became a call is written when the call has ended, with what it used and cost; any
other request when its response has ended. Lines are kept for a moment and written together.
"""

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

import msgspec
import structlog

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.tallies import write_also

# Lines that are kept between two writes; further ones are counted and left out.
_KEPT_MAX = 10_000
# Lines are rendered together: a loop over many takes a fraction of the time. So many do not hold up
# others.
_RENDERED_TOGETHER = 64


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


_log = structlog.get_logger("tollkeeper.requests")

# Takes a line, and when its request ended.
Render = Callable[[RequestLine, float], bytes]


def json_line(line: RequestLine, ended_at: float) -> bytes:
    body = _encode(line)[:-1]
    # The fields that every event of the log has.
    return b'%b,"event":"request","level":"info","timestamp":"%b.%03dZ"}\n' % (
        body,
        _second(int(ended_at)),
        int(ended_at % 1 * 1000),
    )


@lru_cache(maxsize=4)
def _second(moment: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)).encode()


def text_line(line: RequestLine, ended_at: float) -> bytes:
    clock = time.strftime("%H:%M:%S", time.localtime(ended_at))
    parts = [clock, line.operation, str(line.status), f"{line.duration_ms} ms"]
    if line.model is not None:
        parts.append(line.model)
    if line.completion_tokens is not None:
        parts.append(f"{line.prompt_tokens}+{line.completion_tokens} tokens")
    if line.cost_usd is not None:
        parts.append(f"{line.cost_usd} USD")
    if line.error is not None:
        parts.append(line.error)
    return ("  ".join(parts) + "\n").encode()


_encode = msgspec.json.Encoder().encode


def _line_of_call(record: ActivityRecord) -> RequestLine:
    usage, cost = record.usage, record.cost_picousd
    return RequestLine(
        request_id=record.request_id,
        operation=record.operation,
        status=record.status,
        duration_ms=record.duration_ms,
        model=record.model,
        backend=record.backend,
        replica=record.replica,
        streamed=record.streamed,
        first_byte_ms=record.first_piece_ms,
        error=record.error_code,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        cost_usd=None if cost is None else usd_from_picousd(cost),
        settlement=record.settlement,
        organization_id=record.organization_id,
        project_id=record.project_id,
        api_key_id=record.key_id,
    )


class RequestLog:
    def __init__(self, render: Render | None) -> None:
        """Nothing is written where `render` is None."""
        self._render = render
        self._unrendered: list[tuple[ActivityRecord | RequestLine, float]] = []
        self._lines: list[bytes] = []
        self._left_out = 0
        # Open requests that became calls.
        self._calls: set[str] = set()
        if render is not None:
            write_also(self.write)

    def call_started(self, request_id: str) -> None:
        self._calls.add(request_id)

    def call_ended(self, record: ActivityRecord) -> None:
        if self._render is not None:
            self._keep(record)

    def request_ended(
        self, request_id: str, operation: str, status: int, duration_s: float
    ) -> None:
        if request_id in self._calls:
            self._calls.discard(request_id)
        elif self._render is not None:
            self._keep(RequestLine(request_id, operation, status, int(duration_s * 1000)))

    def _keep(self, ended: ActivityRecord | RequestLine) -> None:
        if len(self._lines) >= _KEPT_MAX:
            self._left_out += 1
            return
        self._unrendered.append((ended, time.time()))
        if len(self._unrendered) >= _RENDERED_TOGETHER:
            self._render_together()

    def _render_together(self) -> None:
        assert self._render is not None
        for ended, at in self._unrendered:
            line = ended if isinstance(ended, RequestLine) else _line_of_call(ended)
            self._lines.append(self._render(line, at))
        self._unrendered.clear()

    def write(self) -> None:
        if self._unrendered:
            self._render_together()
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        left_out, self._left_out = self._left_out, 0
        sys.stderr.write(b"".join(lines).decode())
        sys.stderr.flush()
        if left_out:
            _log.warning("lines of the log of requests were left out", count=left_out)
