"""Whether at least one backend can be reached, as the supervisor sees it from outside."""

import asyncio
import contextlib
from urllib.parse import urlsplit

from tollkeeper.backends.embedded import EmbeddedEngine, EngineState
from tollkeeper.settings import BackendSettings, Settings

_CONNECT_TIMEOUT_S = 2.0


async def probe_backends(
    settings: Settings, engine: EmbeddedEngine | None
) -> tuple[dict[str, str], bool]:
    """A line for each backend, and whether one of them is there."""
    found = await asyncio.gather(*(_probe(backend, engine) for backend in settings.backends))
    lines = {
        f"backend {backend.name}": line
        for backend, (line, _) in zip(settings.backends, found, strict=True)
    }
    return lines, any(reachable for _, reachable in found)


async def _probe(backend: BackendSettings, engine: EmbeddedEngine | None) -> tuple[str, bool]:
    if backend.kind == "embedded":
        if engine is None:
            return "disabled", False
        return f"{engine.status.state}: {engine.status.detail}", (
            engine.status.state is EngineState.READY
        )
    reachable = await asyncio.gather(*(_connects(url) for url in backend.urls))
    return f"{sum(reachable)} of {len(reachable)} replicas reachable", any(reachable)


async def _connects(url: str) -> bool:
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.hostname, port)
        writer.close()
        return True
    return False
