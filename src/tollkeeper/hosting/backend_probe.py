"""Whether backends can be reached, as one sees it from outside: for readiness and for the doctor."""

import asyncio
import contextlib
import os
from dataclasses import dataclass

from tollkeeper.backends.config import host_and_port
from tollkeeper.embedded.engine import EmbeddedEngine, EngineState
from tollkeeper.settings import BackendSettings, Settings

CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of a try."""

    ok: bool
    detail: str


async def probe_backends(
    settings: Settings, engine: EmbeddedEngine | None
) -> tuple[dict[str, str], bool]:
    """A line for each backend, and whether one of them is there."""
    found = await asyncio.gather(*(_probe(backend, engine) for backend in settings.backends))
    lines = {
        f"backend {backend.name}": reached.detail
        for backend, reached in zip(settings.backends, found, strict=True)
    }
    return lines, any(reached.ok for reached in found)


async def _probe(backend: BackendSettings, engine: EmbeddedEngine | None) -> Reached:
    if backend.kind == "embedded":
        return engine_state(engine)
    replicas = await asyncio.gather(*(reach(url, CONNECT_TIMEOUT_S) for url in backend.urls))
    count = sum(replica.ok for replica in replicas)
    return Reached(count > 0, f"{count} of {len(replicas)} replicas reachable")


def engine_state(engine: EmbeddedEngine | None) -> Reached:
    if engine is None:
        return Reached(False, "disabled")
    status = engine.status
    return Reached(status.state is EngineState.READY, f"{status.state}: {status.detail}")


async def reach(url: str, timeout_s: float) -> Reached:
    """Whether somebody accepts connections there. An address that no call could be made to is not
    tried."""
    try:
        host, port = host_and_port(url)
    except ValueError as exc:
        return Reached(False, str(exc))
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Reached(False, f"{url} does not answer in time")
    except OSError as exc:
        return Reached(False, f"{url} cannot be reached: {_reason(exc)}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Reached(True, f"{url} accepts connections")


def _reason(exc: OSError) -> str:
    # A name that cannot be resolved has an error number of its own kind.
    return os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
