"""Starts the program of another gateway and waits until it answers."""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from bench.programs import last_output_line, started

_START_WITHIN_S = 600


class NotStarted(Exception):
    """A gateway did not start. The message contains the reason."""


@asynccontextmanager
async def running_program(
    command: list[str | Path],
    folder: Path,
    environment: dict[str, str],
    ready: str | Path,
    end: int = signal.SIGTERM,
) -> AsyncIterator[None]:
    """Run a program until the context ends. The program is ready when the address `ready` answers or the
    file `ready` exists. `end` is the signal that stops the program."""
    with started(command, folder, environment, end) as process:
        await _wait(process, ready, folder)
        yield


async def _wait(process: subprocess.Popen[bytes], ready: str | Path, folder: Path) -> None:
    until = time.monotonic() + _START_WITHIN_S
    async with httpx2.AsyncClient(timeout=10, verify=False) as client:
        while time.monotonic() < until and process.poll() is None:
            if isinstance(ready, Path):
                if ready.is_file():  # noqa: ASYNC240 - a local file
                    return
            else:
                with contextlib.suppress(httpx2.HTTPError):
                    await client.get(ready)
                    return
            await asyncio.sleep(0.3)
    raise NotStarted(last_output_line(folder))
