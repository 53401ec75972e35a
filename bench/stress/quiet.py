"""Measures a client with one request at a time, whose times show the effect of other clients.

The client runs in a separate process, so that the work of the load generator does not slow it down:

    python -m bench.stress.quiet PORT

The process reads its request from standard input, prints `ready`, sends the request again and again until
the input ends, and prints the times and failures.
"""

import asyncio
import base64
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import uvloop

from bench.stress.open_loop import Answer, percentile_ms

_PAUSE_S = 0.01
_READY = b"ready\n"


@dataclass
class Quiet:
    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    @property
    def p50_ms(self) -> float:
        return percentile_ms(self.seconds, 50)

    @property
    def p99_ms(self) -> float:
        return percentile_ms(self.seconds, 99)


class QuietCaller:
    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._answer: Answer | None = None

    async def call_until(self, ended: asyncio.Event) -> Quiet:
        found = Quiet()
        while not ended.is_set():
            await self._call(found)
            await asyncio.sleep(_PAUSE_S)
        return found

    async def until_as_fast_as(self, p50_ms: float, *, within_s: float) -> float | None:
        """Returns the seconds until five consecutive calls have this median, or None if that takes too long."""
        started = time.monotonic()
        last: list[tuple[float, float]] = []
        while time.monotonic() - started < within_s:
            began, found = time.monotonic() - started, Quiet()
            await self._call(found)
            last = [] if found.failures else [*last[-4:], (began, found.seconds[0])]
            if len(last) == 5 and 1000 * median(taken for _, taken in last) <= p50_ms:
                return last[0][0]
            await asyncio.sleep(_PAUSE_S)
        return None

    def close(self) -> None:
        if self._answer is not None:
            self._answer.transport.close()
            self._answer = None

    async def _call(self, found: Quiet) -> None:
        if self._answer is None or self._answer.transport.is_closing():
            loop = asyncio.get_running_loop()
            _, self._answer = await loop.create_connection(Answer, "127.0.0.1", self._port)
        started = time.perf_counter()
        status, _ = await self._answer.ask(self._request)
        found.seconds.append(time.perf_counter() - started)
        found.failures += status != 200


@asynccontextmanager
async def quiet_calls(port: int, request: bytes) -> AsyncIterator[Quiet]:
    """Sends calls from another process while the block runs. The result is complete after the block."""
    found = Quiet()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.stress.quiet", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(base64.b64encode(request) + b"\n")
        assert await process.stdout.readline() == _READY
        yield found
        process.stdin.close()
        seen = json.loads(await process.stdout.readline())
        found.seconds, found.failures = seen["seconds"], seen["failures"]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _main(port: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    request = base64.b64decode(await asyncio.to_thread(sys.stdin.buffer.readline))
    sys.stdout.buffer.write(_READY)
    sys.stdout.flush()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    waiting = loop.run_in_executor(None, wait_for_end)
    found = await QuietCaller(port, request).call_until(ended)
    await waiting
    print(json.dumps({"seconds": found.seconds, "failures": found.failures}), flush=True)


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1])))
