"""Checks whether backends can be reached, for `/readyz` and `tollkeeper doctor`."""

import asyncio
import contextlib
import os
from dataclasses import dataclass

from tollkeeper.providers.config import host_and_port
from tollkeeper.setup.embedded.engine import EmbeddedEngine, ProcessState
from tollkeeper.setup.settings import BackendSettings, Settings

CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """With a sentence for the operator."""

    ok: bool
    detail: str


async def probe_backends(
    settings: Settings, engine: EmbeddedEngine | None
) -> tuple[dict[str, str], bool]:
    """A line about each, and whether at least one can be reached."""
    results = await asyncio.gather(*(_probe(backend, engine) for backend in settings.backends))
    lines = {
        f"backend {backend.name}": result.detail
        for backend, result in zip(settings.backends, results, strict=True)
    }
    return lines, any(result.ok for result in results)


async def _probe(backend: BackendSettings, engine: EmbeddedEngine | None) -> ProbeResult:
    if backend.kind == "embedded":
        return engine_state(engine)
    replicas = await asyncio.gather(*(reach(url, CONNECT_TIMEOUT_S) for url in backend.urls))
    count = sum(replica.ok for replica in replicas)
    return ProbeResult(count > 0, f"{count} of {len(replicas)} replicas reachable")


def engine_state(engine: EmbeddedEngine | None) -> ProbeResult:
    if engine is None:
        return ProbeResult(False, "disabled")
    status = engine.status
    return ProbeResult(status.state is ProcessState.READY, f"{status.state}: {status.detail}")


async def reach(url: str, timeout_s: float) -> ProbeResult:
    """Opens a TCP connection. An invalid URL is a failure."""
    try:
        host, port = host_and_port(url)
    except ValueError as exc:
        return ProbeResult(False, str(exc))
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ProbeResult(False, f"{url} does not answer in time")
    except OSError as exc:
        return ProbeResult(False, f"{url} cannot be reached: {_reason(exc)}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(True, f"{url} accepts connections")


def _reason(exc: OSError) -> str:
    # Name resolution errors are negative, and `os.strerror` has no text for them.
    return os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
