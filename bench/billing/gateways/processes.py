"""Runs the program of another gateway, with an environment of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

_START_WITHIN_S = 600
_STOP_WITHIN_S = 20


class NotStarted(Exception):
    """A gateway did not start, and why."""


@asynccontextmanager
async def running_program(
    command: list[str | Path], folder: Path, environment: dict[str, str], ready: str | Path
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a program until the context ends. It is ready when the address `ready` answers, or when the
    file `ready` exists. Of our environment it gets only PATH."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    with (
        (folder / "output").open("ab") as output,
        subprocess.Popen(  # noqa: ASYNC220 - nothing else runs while a gateway starts
            command,
            env=variables,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            await _wait(process, ready, folder)
            yield process
        finally:
            await asyncio.to_thread(_stop, process)


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
    said = (folder / "output").read_text(errors="replace").strip().splitlines()
    raise NotStarted(said[-1][:200] if said else "it does not answer, and says nothing")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_WITHIN_S)
            return
