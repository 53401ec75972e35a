"""The bridge to the library of providers: what it serves, its address, and its kept process.

One bridge serves all workers. To them each of its backends is a server that speaks the chat
protocol. The code of the library and of the providers' SDKs is in that process only.
"""

import os
import secrets
import sys
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec

from tollkeeper.embedded.bridge_address import BridgeAddress
from tollkeeper.embedded.kept_process import (
    LOOPBACK_HOST,
    KeptProcess,
    ProcessPlan,
    ProcessStatus,
    answers_with_200,
)

LIBRARY_MODULE = "any_llm"
_PACKAGE = Path(__file__).parents[1]
_PROGRAM = "tollkeeper.embedded.bridge.process"
# Runs the program on an interpreter that has the library and nothing of the gateway: only this
# package is made known to it, and no package that is installed beside it.
_RUN_FROM_FOLDER = f"""
import importlib.util, runpy, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location(
    "tollkeeper", folder + "/__init__.py", submodule_search_locations=[folder]
)
package = sys.modules["tollkeeper"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module("{_PROGRAM}", run_name="__main__")
"""
# Importing the library takes seconds, and on a busy machine much longer.
START_TIMEOUT_S = 300.0
_PROBED_PATH = "/health"
# Only these variables reach the bridge, and those that `library.environment` names: the keys of the
# backends come by the handshake.
_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
# The gateway's own interpreter may need these to find what is installed.
_OWN_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
# What SDKs would tell others about their use.
_NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ANONYMIZED_TELEMETRY": "false",
}


@dataclass(frozen=True, slots=True)
class BridgedBackend:
    """One backend, as the bridge needs it."""

    name: str
    provider: str
    api_key: str | None = field(repr=False)
    # The file that the key was read from: a changed file changes the key.
    api_key_file: str | None
    # None: the provider's own.
    base_url: str | None


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    backends: tuple[BridgedBackend, ...]
    # The interpreter that has the library; empty: the gateway's own.
    python: str
    calls_max: int
    # How long the library waits for a provider at most.
    timeout_s: float
    # Further variables that the library may see.
    environment: tuple[str, ...] = ()


class BridgeReport(msgspec.Struct, frozen=True):
    """What the bridge writes when it is ready."""

    # The library and its version.
    library: str
    # Of each backend that cannot be used: why.
    refused: dict[str, str]


class ProviderBridge:
    """Keeps one bridge running from `start` to `close`; both belong to the same event loop."""

    def __init__(self, options: BridgeOptions) -> None:
        self.options = options
        self._kept = KeptProcess("bridge")
        self._address: BridgeAddress | None = None
        self._report: BridgeReport | None = None

    @property
    def status(self) -> ProcessStatus:
        return self._kept.status

    @property
    def address(self) -> BridgeAddress | None:
        """None before `start`. After that it is always the same, ready or not."""
        return self._address

    @property
    def report(self) -> BridgeReport | None:
        """None until the bridge was ready for the first time."""
        return self._report

    @property
    def pid(self) -> int | None:
        return self._kept.pid

    async def start(self) -> None:
        """Returns at once. The library is imported in the background."""
        port = self._kept.reserve_port()
        api_key = secrets.token_urlsafe(32)
        self._address = BridgeAddress(f"http://{LOOPBACK_HOST}:{port}", api_key)
        self._kept.start(self._plan(port, api_key), detail="The library is imported.")

    async def wait_ready(self, timeout_s: float) -> bool:
        return await self._kept.wait_ready(timeout_s)

    async def close(self) -> None:
        """Returns when the bridge's process has ended. May be called again."""
        await self._kept.close()

    def _plan(self, port: int, api_key: str) -> ProcessPlan:
        options = self.options
        names = (*_ENVIRONMENT, *options.environment)
        if options.python:
            command = [options.python, "-P", "-c", _RUN_FROM_FOLDER, str(_PACKAGE)]
        else:
            command = [sys.executable, "-P", "-m", _PROGRAM]
            names = (*names, *_OWN_ENVIRONMENT)
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        return ProcessPlan(
            noun="bridge",
            command=command,
            environment={**inherited, **_NO_TELEMETRY},
            handshake={
                "api_key": api_key,
                "port": port,
                "calls_max": options.calls_max,
                "timeout_s": options.timeout_s,
                "backends": [asdict(backend) for backend in options.backends],
            },
            start_timeout_s=START_TIMEOUT_S,
            read_report=self._read_report,
            answers=lambda: answers_with_200(port, _PROBED_PATH, api_key),
        )

    def _read_report(self, line: bytes, took_s: float) -> str | None:
        try:
            report = self._report = msgspec.json.decode(line, type=BridgeReport)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        refused = "".join(f" {name}: {reason}" for name, reason in report.refused.items())
        return f"{report.library}, imported in {took_s:.1f} s.{refused}"


def library_is_installed() -> bool:
    """Whether the gateway's own interpreter has the library. Does not import it."""
    return find_spec(LIBRARY_MODULE) is not None
