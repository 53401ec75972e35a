"""The embedded engine: its options, its address, and the process that is kept for it.

One engine serves all workers. They know only its address, which stays the same after a restart.
Calls to the engine are made by the OpenAI-compatible backend, not here.
"""

import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tollkeeper.domain.errors import Unavailable
from tollkeeper.embedded.engine_address import ENGINE_HOST, EngineAddress
from tollkeeper.embedded.engine_report import EngineReport, read_report
from tollkeeper.embedded.engine_weights import find_weights
from tollkeeper.embedded.kept_process import (
    KeptProcess,
    ProcessPlan,
    ProcessStatus,
    answers_with_200,
)
from tollkeeper.embedded.packaged_model import PACKAGED_MODEL

_PROGRAM = "tollkeeper.embedded.engine_process"
# A large model on a slow disk loads in minutes. An engine that takes longer is taken for stuck.
START_TIMEOUT_S = 300.0
# Only the engine's computing loop can answer this path. `/health` is answered while the loop hangs:
# it was for minutes, with a schema of some thousand enum values.
_PROBED_PATH = "/slots"
_CONTEXT_SETTING = "embedded.context_length"
# Only these variables reach the engine: the gateway's environment holds secrets it does not need.
_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)
_SIGNAL_HINTS: Mapping[int, str] = {signal.SIGILL: " (its wheel needs a processor with AVX2)"}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    # Empty means the packaged model.
    model_path: str
    # 0 means all cores but one.
    threads: int
    parallel: int
    # Tokens per slot. A model that was trained for fewer gets fewer.
    context_length: int

    @property
    def model_name(self) -> str:
        return Path(self.model_path).stem if self.model_path else PACKAGED_MODEL.upstream_model


class EmbeddedEngine:
    """Keeps one engine running from `start` to `close`; both belong to the same event loop."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._kept = KeptProcess("engine")
        self._address: EngineAddress | None = None
        self._report: EngineReport | None = None

    @property
    def status(self) -> ProcessStatus:
        return self._kept.status

    @property
    def address(self) -> EngineAddress | None:
        """None if the engine is absent. Otherwise it is the same from `start` on, ready or not."""
        return self._address

    @property
    def report(self) -> EngineReport | None:
        """The engine's own report. None until it was ready for the first time."""
        return self._report

    @property
    def pid(self) -> int | None:
        return self._kept.pid

    @property
    def restarts(self) -> int:
        return self._kept.restarts

    async def start(self) -> None:
        """Returns at once. The model loads in the background."""
        try:
            weights = find_weights(self.options.model_path)
        except Unavailable as exc:
            self._kept.set_absent(exc.message)
            return
        port = self._kept.reserve_port()
        api_key = secrets.token_urlsafe(32)
        self._address = EngineAddress(f"http://{ENGINE_HOST}:{port}/v1", api_key)
        self._kept.start(self._plan(weights, port, api_key), detail=f"Loading {weights.name}.")

    async def wait_ready(self, timeout_s: float) -> bool:
        return await self._kept.wait_ready(timeout_s)

    async def close(self) -> None:
        """Returns when the engine's process has ended. May be called again."""
        await self._kept.close()

    def _plan(self, weights: Path, port: int, api_key: str) -> ProcessPlan:
        options = self.options
        return ProcessPlan(
            noun="engine",
            command=(
                sys.executable,
                "-P",  # modules in the working folder are not imported
                *("-m", _PROGRAM),
                *("--model-path", str(weights)),
                *("--model-name", options.model_name),
                *("--port", str(port)),
                *("--parallel", str(options.parallel)),
                *("--context-length", str(options.context_length)),
                *("--threads", str(options.threads)),
            ),
            environment={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            handshake={"api_key": api_key},
            start_timeout_s=START_TIMEOUT_S,
            read_report=self._read_report,
            answers=lambda: answers_with_200(port, _PROBED_PATH, api_key),
            signal_hints=_SIGNAL_HINTS,
        )

    def _read_report(self, line: bytes, took_s: float) -> str | None:
        report = self._report = read_report(line)
        if report is None:
            return None
        detail = f"{self.options.model_name}, {report}, loaded in {took_s:.1f} s."
        if report.context_length < self.options.context_length:
            wanted = self.options.context_length
            detail += f" {_CONTEXT_SETTING} asks for {wanted}, but the model has no more context."
        return detail
