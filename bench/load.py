"""Generates load in one process: each keep-alive connection has one request at a time."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import httptools

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Whole:
    """The condition for a complete body: it contains `mark` at least `times` times. A status of 200 does
    not show that a body is complete."""

    mark: bytes
    times: int


@dataclass
class Result:
    requests: int = 0
    # Requests that were not answered completely, by status; 0 means that the connection broke.
    failed: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    first_byte_s: list[float] = field(default_factory=list)

    @property
    def failures(self) -> int:
        return self.failed.total()

    @property
    def failure_message(self) -> str:
        statuses = ", ".join(
            f"{count} with status {status}" for status, count in self.failed.items()
        )
        return f"{self.failures} of {self.requests} requests failed: {statuses}"

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0


class Response(asyncio.Protocol):
    """One connection. It records each response's status, body and time of the first body byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None
        self._first = 0.0
        self._body: list[bytes] = []

    async def ask(self, request: bytes) -> tuple[int, float]:
        """Sends a request. Returns the status, or 0 if the connection broke, and the seconds to the first
        body byte."""
        if self.transport.is_closing():
            return 0, 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._first = 0.0
        self._body.clear()
        started = time.perf_counter()
        self.transport.write(request)
        status = await self._done
        return status, self._first - started

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._body.append(body)

    def has(self, whole: Whole) -> bool:
        return b"".join(self._body).count(whole.mark) >= whole.times

    @property
    def under_way(self) -> bool:
        """Returns whether the response's body has begun and the response has not ended."""
        return bool(self._first) and self._done is not None and not self._done.done()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self._done is not None and not self._done.done():
            self._done.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(0)


def request_bytes(path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: bench", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def connect(port: int) -> Response:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(Response, "127.0.0.1", port)
    return protocol


async def run_load(
    port: int, requests: list[bytes], *, connections: int, count: int, whole: Whole
) -> Result:
    """Sends `count` requests over `connections` connections, cycling through `requests`. An incomplete
    response counts as a failure, whatever its status is."""
    result = Result()
    left = iter(range(count))

    async def worker() -> None:
        protocol = await connect(port)
        for number in left:
            status, first = await protocol.ask(requests[number % len(requests)])
            result.requests += 1
            if status != 200 or not protocol.has(whole):
                result.failed[status] += 1
            result.first_byte_s.append(first)
        protocol.transport.close()

    started = time.perf_counter()
    # Without `asyncio.gather`, whose Python code `bench.steps` would count as work of the gateway.
    loop = asyncio.get_running_loop()
    workers = [loop.create_task(worker()) for _ in range(connections)]
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            for one in workers:
                await one
    finally:
        for one in workers:
            one.cancel()
    result.seconds = time.perf_counter() - started
    return result
