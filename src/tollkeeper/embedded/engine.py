"""The embedded engine as its supervisor sees it: started, watched, restarted, stopped.

One engine serves all workers. They know only its address, which is the same after every restart;
what is said to the engine is the business of the OpenAI-compatible backend.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from tollkeeper.domain.errors import Unavailable
from tollkeeper.embedded.engine_address import ENGINE_HOST, EngineAddress
from tollkeeper.embedded.engine_report import EngineReport, read_report
from tollkeeper.embedded.engine_weights import find_weights
from tollkeeper.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.timeouts import timeout

_PROGRAM = "tollkeeper.embedded.engine_process"
# A large model on a slow disk takes minutes; what takes longer is stuck.
START_TIMEOUT_S = 300.0
_PAUSE_S = 0.5
_PAUSE_S_MAX = 10.0
# An engine that lived so long was sound: its end starts the pauses anew.
_SOUND_AFTER_S = 30.0
# So many starts in a row without a sound engine are called a failure. Trying goes on.
_FAILURES_TO_GIVE_A_NAME = 3
_STOP_TIMEOUT_S = 3.0
_KILL_TIMEOUT_S = 10.0
_PROBE_INTERVAL_S = 5.0
# Far above one batch of a large model, because the loop answers only between two of them.
_PROBE_TIMEOUT_S = 20.0
_PROBE_MISSES_MAX = 3
_SAID_BYTES_MAX = 2000
_CONTEXT_SETTING = "embedded.context_length"
# Not TOLLKEEPER_: these are no settings, and nobody else should set them.
# The gateway's environment holds secrets that the engine has no use for.
_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)
_log = structlog.get_logger("tollkeeper.engine")


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    # It ended again and again; it is still being tried.
    FAILED = "failed"
    # There is nothing to start, and the detail says what is missing.
    ABSENT = "absent"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    state: EngineState
    detail: str


@dataclass(frozen=True, slots=True)
class EngineOptions:
    # Empty: the packaged model.
    model_path: str
    # 0: all cores but one.
    threads: int
    parallel: int
    # Of each slot; a model trained for less has less.
    context_length: int

    @property
    def model_name(self) -> str:
        return Path(self.model_path).stem if self.model_path else PACKAGED_MODEL.upstream_model


class EmbeddedEngine:
    """Keeps one engine running from `start` to `close`; both belong to the same event loop."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._status = EngineStatus(EngineState.STARTING, "The engine has not been started yet.")
        self._ready = asyncio.Event()
        self._reservation: socket.socket | None = None
        self._address: EngineAddress | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._said = b""
        self._report: EngineReport | None = None
        self.restarts = 0

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def address(self) -> EngineAddress | None:
        """None where the engine is absent; else the same from `start` on, ready or not."""
        return self._address

    @property
    def report(self) -> EngineReport | None:
        """What the engine says of itself; None before it was ready once."""
        return self._report

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns at once; the model loads in the background."""
        assert self._keeper is None, "an engine is started once"
        try:
            weights = find_weights(self.options.model_path)
        except Unavailable as exc:
            self._become(EngineState.ABSENT, exc.message)
            return
        self._reservation = _reserve_port()
        port = self._reservation.getsockname()[1]
        self._address = EngineAddress(f"http://{ENGINE_HOST}:{port}/v1", secrets.token_urlsafe(32))
        self._become(EngineState.STARTING, f"Loading {weights.name}.")
        self._keeper = asyncio.get_running_loop().create_task(self._keep(weights, port))

    async def wait_ready(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Returns when no process is left; safe to repeat."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
            self._become(EngineState.STOPPED, "The engine was stopped.")
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    async def _keep(self, weights: Path, port: int) -> None:
        loop = asyncio.get_running_loop()
        failures, pause_s = 0, _PAUSE_S
        while True:
            started = loop.time()
            try:
                reason = await self._run(weights, port)
            except OSError as exc:
                reason = f"The engine's process cannot be started: {exc}."
            if loop.time() - started >= _SOUND_AFTER_S:
                failures, pause_s = 0, _PAUSE_S
            failures += 1
            failed = failures >= _FAILURES_TO_GIVE_A_NAME
            state = EngineState.FAILED if failed else EngineState.RESTARTING
            self._become(state, f"{reason} It is started again.")
            _log.error("the engine ended and is started again", reason=reason, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            self.restarts += 1

    async def _run(self, weights: Path, port: int) -> str:
        """Keeps one process until it ends or hangs, and says why. Leaves none behind."""
        process = self._process = await self._spawn(weights, port)
        self._said = b""
        exited = asyncio.create_task(process.wait())
        listening = asyncio.create_task(self._listen(process))
        try:
            if not await self._becomes_ready(process):
                await asyncio.wait({exited, listening}, timeout=_STOP_TIMEOUT_S)
                return _ending(process.returncode, self._said)
            return await self._watch(process, exited, port)
        finally:
            self._ready.clear()
            await _end(process, exited)
            listening.cancel()
            await asyncio.wait({listening})
            self._process = None

    async def _spawn(self, weights: Path, port: int) -> asyncio.subprocess.Process:
        options = self.options
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # whatever lies in the working folder is not imported
            *("-m", _PROGRAM),
            *("--model-path", str(weights)),
            *("--model-name", options.model_name),
            *("--port", str(port)),
            *("--parallel", str(options.parallel)),
            *("--context-length", str(options.context_length)),
            *("--threads", str(options.threads)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            # Ctrl-C is for the supervisor: calls that are being drained still need the engine.
            start_new_session=True,
        )
        assert process.stdin is not None
        assert self._address is not None
        first = {"api_key": self._address.api_key, "parent_pid": os.getpid()}
        # The pipe stays open: its end is the engine's order to end.
        process.stdin.write(json.dumps(first).encode() + b"\n")
        return process

    async def _becomes_ready(self, process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            self._said = f"It was not ready after {START_TIMEOUT_S:.0f} s.".encode()
            return False
        if not line:
            return False
        report = self._report = read_report(line)
        if report is None:
            self._said = b"It reported something else than that it is ready."
            return False
        took_s = loop.time() - started
        detail = f"{self.options.model_name}, {report}, loaded in {took_s:.1f} s."
        if report.context_length < self.options.context_length:
            detail += f" The model has no more context, though {_CONTEXT_SETTING} asks for it."
        self._become(EngineState.READY, detail)
        _log.info("the engine is ready", detail=detail)
        self._ready.set()
        return True

    async def _watch(
        self, process: asyncio.subprocess.Process, exited: asyncio.Task[int], port: int
    ) -> str:
        """Returns when the process has ended, or answers no more though it runs."""
        misses = 0
        while misses < _PROBE_MISSES_MAX:
            await asyncio.wait({exited}, timeout=_PROBE_INTERVAL_S)
            if exited.done():
                return _ending(process.returncode, b"")
            assert self._address is not None
            misses = 0 if await _answers(port, self._address.api_key) else misses + 1
        return "The engine hung: it runs, but computes nothing."

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Reads what the engine says, or it would block. Only what it says before it is ready is
        kept: that explains a failed start, and later lines may quote a caller's request."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            if not self._ready.is_set():
                self._said = (self._said + chunk)[-_SAID_BYTES_MAX:]

    def _become(self, state: EngineState, detail: str) -> None:
        self._status = EngineStatus(state, detail)


def _reserve_port() -> socket.socket:
    """A free port of loopback, kept by a socket that is bound and does not listen: connections go
    to the engine, which shares the port, and nobody else is given it between two engines."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind((ENGINE_HOST, 0))
    return reservation


async def _answers(port: int, api_key: str) -> bool:
    """Asks for the slots, which only the computing loop can tell. `/health` would say yes while
    that loop hangs, as it did for minutes with a schema of some thousand enum values."""
    request = f"GET /slots HTTP/1.1\r\nHost: {ENGINE_HOST}\r\nAuthorization: Bearer {api_key}\r\n"
    try:
        with timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(ENGINE_HOST, port)
            try:
                writer.write(f"{request}Connection: close\r\n\r\n".encode())
                status = await reader.read(64)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.startswith(b"HTTP/1.1 200 ")


async def _end(process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> None:
    for order, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(order)
        await asyncio.wait({exited}, timeout=timeout_s)


def _ending(code: int | None, said: bytes) -> str:
    if code is None:
        how = "did not become ready"
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        if -code == signal.SIGILL:
            how += " (its wheel needs a processor with AVX2)"
    else:
        how = f"ended with code {code}"
    return f"The engine {how}{_because(said)}."


def _because(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    if not lines:
        return ""
    # The engine names the cause first and its consequences after it; Python the other way round.
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f": {line.strip().rstrip('.')[:300]}"
