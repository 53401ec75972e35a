"""Generates open-loop load: sends requests at a fixed rate, whether or not earlier requests are answered.

A closed loop slows down with the server, so it hides how long clients wait. Here each request has a
planned time and an idle connection. A request for which no connection is idle is counted, but not sent.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.figures import quantile
from bench.load import Response

_ENVELOPE = {"code", "message", "type", "param", "request_id", "doc_url"}
_REFUSALS = (429, 503)
# The pause between two checks for due requests.
_STEP_S = 0.001
_ANSWERS_WITHIN_S = 30.0
# The status of a request that was not answered in time.
_LATE = 0


class Answer(Response):
    """One connection. It keeps the last answer and its headers."""

    def __init__(self) -> None:
        self._headers: dict[bytes, bytes] = {}

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_message_complete(self) -> None:
        self.keeps_alive = self._headers.get(b"connection") != b"close"
        super().on_message_complete()

    @property
    def is_refusal(self) -> bool:
        """Returns whether the answer is a well-formed rejection: an error of the interface with Retry-After."""
        try:
            error = json.loads(b"".join(self._body))["error"]
        except (ValueError, KeyError, TypeError):
            return False
        return (
            set(error) == _ENVELOPE
            and self._headers.get(b"retry-after", b"").isdigit()
            and self._headers.get(b"x-request-id", b"").decode() == error["request_id"]
        )


@dataclass
class Arrivals:
    """The results of the requests of one run. Times are in seconds since the request was sent."""

    offered: int = 0
    # The times of requests that were answered with 200, in the order of the answers.
    served_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    # The number of rejections that are not well-formed.
    malformed: int = 0
    # The number of requests for which no connection was idle.
    not_sent: int = 0
    # The delay of each request behind its planned time, which the load generator itself causes.
    late_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def served_per_second(self) -> float:
        return len(self.served_s) / self.seconds

    @property
    def failures(self) -> int:
        """Returns the number of requests that were neither answered with 200 nor rejected with 429 or 503."""
        good = {200, *_REFUSALS}
        return sum(count for status, count in self.statuses.items() if status not in good)

    def note(self, status: int, seconds: float, answer: Answer) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.served_s.append(seconds)
        elif status in _REFUSALS:
            self.refused_s.append(seconds)
            self.malformed += not answer.is_refusal


def percentile_ms(times: list[float], percent: int) -> float:
    return 1000 * quantile(times, percent / 100) if times else 0.0


class OpenLoop:
    """Sends requests at a fixed rate over connections that stay open between runs. Each client has its
    own connections."""

    def __init__(self, port: int, *, callers: int = 1, connections_max: int = 1000) -> None:
        self._port = port
        self.connections_max = connections_max
        # The idle connections of each client.
        self._idle: list[deque[Answer]] = [deque() for _ in range(callers)]
        self._open = 0

    async def connect(self) -> None:
        """Opens the connections before a run, so that the run does not measure it."""
        while self._open < self.connections_max:
            self._idle[self._open % len(self._idle)].append(await self._new_connection())

    async def run(
        self, requests: Sequence[bytes], *, per_second: float, seconds: float, settling_s: float = 0
    ) -> Arrivals:
        """Cycles through the requests, one of each client, for this time, and waits for the answers. Requests
        of the `settling_s` seconds before this time are not part of the result."""
        if settling_s:
            settling = asyncio.create_task(
                self.run(requests, per_second=per_second, seconds=settling_s)
            )
            await asyncio.sleep(settling_s)
            found = await self.run(requests, per_second=per_second, seconds=seconds)
            await settling
            return found
        found = Arrivals(seconds=seconds)
        tasks: set[asyncio.Task[None]] = set()
        try:
            await self._send_all(requests, per_second, found, tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_ANSWERS_WITHIN_S)
            for task in late:
                task.cancel()
            found.statuses[_LATE] = found.statuses.get(_LATE, 0) + len(late)
        return found

    async def _send_all(
        self,
        requests: Sequence[bytes],
        per_second: float,
        found: Arrivals,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        total = round(per_second * found.seconds)
        started = time.perf_counter()
        while found.offered < total:
            now = time.perf_counter()
            due = min(total, int((now - started) * per_second) + 1)
            while found.offered < due:
                planned = started + found.offered / per_second
                caller = found.offered % len(requests)
                idle = self._idle[caller % len(self._idle)]
                found.offered += 1
                found.late_s.append(max(0.0, time.perf_counter() - planned))
                if not idle:
                    found.not_sent += 1
                    continue
                task = asyncio.create_task(self._ask(idle.pop(), idle, requests[caller], found))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(_STEP_S)

    async def _ask(
        self, answer: Answer, idle: deque[Answer], request: bytes, found: Arrivals
    ) -> None:
        """Sends a request and records its result. Then the connection, or a new one, is added to `idle`."""
        if answer.transport.is_closing():
            self._open -= 1
            answer = await self._new_connection()
        sent = time.perf_counter()
        try:
            status, _ = await answer.ask(request)
        except asyncio.CancelledError:
            answer.transport.abort()
            self._open -= 1
            raise
        found.note(status, time.perf_counter() - sent, answer)
        if status and answer.keeps_alive and not answer.transport.is_closing():
            idle.append(answer)
        else:
            answer.transport.close()
            self._open -= 1
            idle.append(await self._new_connection())

    async def _new_connection(self) -> Answer:
        self._open += 1
        loop = asyncio.get_running_loop()
        try:
            _, answer = await loop.create_connection(Answer, "127.0.0.1", self._port)
        except OSError:
            self._open -= 1
            raise
        return answer

    def close(self) -> None:
        for idle in self._idle:
            for answer in idle:
                answer.transport.close()
            self._open -= len(idle)
            idle.clear()
