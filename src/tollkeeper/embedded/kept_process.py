"""A process that the gateway runs beside itself: started, watched, restarted and stopped.

The embedded engine is such a process. It listens on a loopback port that stays the same after a
restart. It reads one line of JSON from standard input, with the secrets that must not appear on a
command line, writes one line to standard output when it is ready, and ends when its standard input
ends.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog

from tollkeeper.timeouts import timeout

LOOPBACK_HOST = "127.0.0.1"
_PAUSE_S = 0.5
_PAUSE_S_MAX = 10.0
# If a process ran for this long, the pause before its restart is the shortest again.
_STABLE_AFTER_S = 30.0
# After this many short runs in a row the state is FAILED. The restarts go on.
_FAILURES_UNTIL_FAILED = 3
_STOP_TIMEOUT_S = 3.0
_KILL_TIMEOUT_S = 10.0
_PROBE_INTERVAL_S = 5.0
# Far above the time of one batch of a large model: the engine answers only between two batches.
_PROBE_TIMEOUT_S = 20.0
_PROBE_MISSES_MAX = 3
_START_OUTPUT_BYTES_MAX = 2000
# The longest line that a process may write as its report.
_REPORT_BYTES_MAX = 1 << 16
_log = structlog.get_logger("tollkeeper.processes")


class ProcessState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    # The process ended several times in a row. It is still being restarted.
    FAILED = "failed"
    # What the process needs is missing or unusable. The detail says what, and why.
    ABSENT = "absent"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    state: ProcessState
    detail: str


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What is run, and how its readiness and its life are seen."""

    # "engine", as sentences to the operator call it.
    noun: str
    command: Sequence[str]
    environment: Mapping[str, str]
    # The line that the process reads first. It may have secrets.
    handshake: Mapping[str, Any] = field(repr=False)
    start_timeout_s: float
    # Reads the line of readiness: a sentence for the operator, or None if the line is no report.
    # The number is how many seconds the start took.
    read_report: Callable[[bytes, float], str | None]
    # Whether the process still answers.
    answers: Callable[[], Awaitable[bool]]
    # What is added to the reason where a signal ended the process.
    signal_hints: Mapping[int, str] = field(default_factory=dict)


class KeptProcess:
    """Keeps one process running from `start` to `close`; both belong to the same event loop."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._status = ProcessStatus(ProcessState.STARTING, f"The {noun} has not been started yet.")
        self._ready = asyncio.Event()
        self._keeper_task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._start_output = b""
        self._port_holder: socket.socket | None = None
        self.restarts = 0

    @property
    def status(self) -> ProcessStatus:
        return self._status

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def set_absent(self, reason: str) -> None:
        """Instead of `start`: the process cannot run."""
        self._set_status(ProcessState.ABSENT, reason)

    def reserve_port(self) -> int:
        """A port for the process, which nobody else gets until `close`, also between two starts."""
        self._port_holder = _reserved_port()
        return int(self._port_holder.getsockname()[1])

    def start(self, plan: ProcessPlan, *, detail: str) -> None:
        """Returns at once. `detail` says what is being waited for."""
        assert self._keeper_task is None, "a process is started once"
        self._set_status(ProcessState.STARTING, detail)
        self._keeper_task = asyncio.get_running_loop().create_task(self._keep_running(plan))

    async def wait_ready(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Returns when the process has ended. May be called again."""
        if self._keeper_task is not None:
            self._keeper_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper_task
            self._keeper_task = None
            self._set_status(ProcessState.STOPPED, f"The {self._noun} was stopped.")
        if self._port_holder is not None:
            self._port_holder.close()
            self._port_holder = None

    async def _keep_running(self, plan: ProcessPlan) -> None:
        loop = asyncio.get_running_loop()
        failures, pause_s = 0, _PAUSE_S
        while True:
            started = loop.time()
            try:
                reason = await self._run(plan)
            except OSError as exc:
                reason = f"The {plan.noun}'s process cannot be started: {exc}."
            if loop.time() - started >= _STABLE_AFTER_S:
                failures, pause_s = 0, _PAUSE_S
            failures += 1
            failed = failures >= _FAILURES_UNTIL_FAILED
            state = ProcessState.FAILED if failed else ProcessState.RESTARTING
            self._set_status(state, f"{reason} It is started again.")
            _log.error(
                f"the {plan.noun} ended and is started again", reason=reason, pause_s=pause_s
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            self.restarts += 1

    async def _run(self, plan: ProcessPlan) -> str:
        """Runs one process until it ends or hangs. Returns the reason; the process is gone then."""
        process = self._process = await _spawn(plan)
        self._start_output = b""
        exit_task = asyncio.create_task(process.wait())
        reading_errors = asyncio.create_task(self._read_errors(process))
        try:
            if not await self._becomes_ready(plan, process):
                await asyncio.wait({exit_task, reading_errors}, timeout=_STOP_TIMEOUT_S)
                return _end_reason(plan, process.returncode, self._start_output)
            return await self._watch(plan, process, exit_task)
        finally:
            self._ready.clear()
            await _stop_process(process, exit_task)
            reading_errors.cancel()
            await asyncio.wait({reading_errors})
            self._process = None

    async def _becomes_ready(self, plan: ProcessPlan, process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            line = await asyncio.wait_for(process.stdout.readline(), plan.start_timeout_s)
        except TimeoutError:
            self._start_output = f"It was not ready after {plan.start_timeout_s:.0f} s.".encode()
            return False
        except ValueError:  # the line is longer than any report
            line = b"?"
        if not line:
            return False
        detail = plan.read_report(line, loop.time() - started)
        if detail is None:
            self._start_output = b"Its first line of output is not a report of readiness."
            return False
        self._set_status(ProcessState.READY, detail)
        _log.info(f"the {plan.noun} is ready", detail=detail)
        self._ready.set()
        return True

    async def _watch(
        self, plan: ProcessPlan, process: asyncio.subprocess.Process, exit_task: asyncio.Task[int]
    ) -> str:
        """Returns the reason when the process has ended, or runs but does not answer any more."""
        misses = 0
        while misses < _PROBE_MISSES_MAX:
            await asyncio.wait({exit_task}, timeout=_PROBE_INTERVAL_S)
            if exit_task.done():
                return _end_reason(plan, process.returncode, b"")
            misses = 0 if await plan.answers() else misses + 1
        return f"The {plan.noun} hung: its process runs, but does not answer."

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        """Reads the standard error, because a full pipe would block the process. Only output before
        readiness is kept: it explains a failed start. Later lines may quote a request."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            if not self._ready.is_set():
                self._start_output = (self._start_output + chunk)[-_START_OUTPUT_BYTES_MAX:]

    def _set_status(self, state: ProcessState, detail: str) -> None:
        self._status = ProcessStatus(state, detail)


def _reserved_port() -> socket.socket:
    """Binds a free loopback port with a socket that does not listen. The process shares the port
    and gets all connections; no other program can get the port while the process restarts."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((LOOPBACK_HOST, 0))
    return holder


async def answers_with_200(port: int, path: str, api_key: str) -> bool:
    """Whether a process on a loopback port answers this path."""
    request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK_HOST}\r\nAuthorization: Bearer {api_key}\r\n"
    try:
        with timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK_HOST, port)
            try:
                writer.write(f"{request}Connection: close\r\n\r\n".encode())
                status = await reader.read(64)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.startswith(b"HTTP/1.1 200 ")


async def _spawn(plan: ProcessPlan) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *plan.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(plan.environment),
        # Ctrl-C must reach only the supervisor: calls that are being drained need the process.
        start_new_session=True,
        limit=_REPORT_BYTES_MAX,
    )
    assert process.stdin is not None
    # The pipe stays open. The process ends when the pipe ends.
    handshake = {**plan.handshake, "parent_pid": os.getpid()}
    process.stdin.write(json.dumps(handshake).encode() + b"\n")
    return process


async def _stop_process(process: asyncio.subprocess.Process, exit_task: asyncio.Task[int]) -> None:
    for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await asyncio.wait({exit_task}, timeout=timeout_s)


def _end_reason(plan: ProcessPlan, code: int | None, output: bytes) -> str:
    if code is None:
        how = "did not become ready"
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}" + plan.signal_hints.get(-code, "")
    else:
        how = f"ended with code {code}"
    return f"The {plan.noun} {how}{_cause_suffix(output)}."


def _cause_suffix(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    if not lines:
        return ""
    # The engine prints the cause first; a Python traceback prints it last.
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f": {line.strip().rstrip('.')[:300]}"
