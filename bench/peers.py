"""Peers in throw-away environments, measured in the same run. None of them enters the lock."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from bench.figures import Target
from bench.load import request_bytes, run_load
from bench.ports import free_port

_PACKAGE = "sglang-router"
_INSTALL_TIMEOUT_S = 300
_START_TIMEOUT_S = 30


@contextmanager
def sglang_gateway(upstream: int, found: dict[str, object]) -> Iterator[list[Target]]:
    """The Rust gateway that only routes. An empty list, and a word on it, where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tkb-peer-") as folder:
        python = Path(folder) / "bin" / "python"
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
            subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", _PACKAGE],
                check=True,
                capture_output=True,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except (subprocess.SubprocessError, OSError) as exc:
            found["sglang gateway"] = f"could not be installed: {type(exc).__name__}"
            yield []
            return
        port = free_port()
        command = [
            *(str(python), "-m", "sglang_router.launch_router"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", f"http://127.0.0.1:{upstream}"),
            *("--disable-health-check", "--log-level", "error"),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                target = Target(
                    "sglang gateway", port, process.pid, "/v1/chat/completions", "bench", [{}]
                )
                if _answers(target):
                    yield [target]
                else:
                    found["sglang gateway"] = "does not answer"
                    yield []
            finally:
                process.terminate()
                process.wait(30)


def _answers(target: Target) -> bool:
    body = b'{"model": "bench", "messages": [{"role": "user", "content": "x"}]}'
    request = request_bytes(target.path, {}, body)
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until:
        try:
            result = uvloop.run(run_load(target.port, [request], connections=1, count=1))
        except OSError:
            time.sleep(0.5)
            continue
        if not result.failures:
            return True
        time.sleep(0.5)
    return False
