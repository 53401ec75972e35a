"""Whether each replica can be reached, from outside the gateway."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tollkeeper.entry.backend_probe import CONNECT_TIMEOUT_S, ProbeResult, reach
from tollkeeper.setup.settings import BackendSettings, Settings

_ANSWER_BYTES_MAX = 65_536
_ENGINE = "embedded engine"


@dataclass(frozen=True, slots=True)
class ReplicaProbe:
    backend: str
    url: str
    result: ProbeResult


async def probe_replicas(settings: Settings) -> list[ReplicaProbe]:
    """In the order of the settings."""
    checks = [_probe(settings, backend) for backend in settings.backends]
    return [probe for probes in await asyncio.gather(*checks) for probe in probes]


async def _probe(settings: Settings, backend: BackendSettings) -> list[ReplicaProbe]:
    if backend.kind == "embedded":
        state = await _ask_gateway_for_engine_state(settings, backend.name)
        return [ReplicaProbe(backend.name, _ENGINE, state)]
    results = await asyncio.gather(*(reach(url, CONNECT_TIMEOUT_S) for url in backend.urls))
    return [
        ReplicaProbe(backend.name, url, result)
        for url, result in zip(backend.urls, results, strict=True)
    ]


async def _ask_gateway_for_engine_state(settings: Settings, backend: str) -> ProbeResult:
    """The gateway started the engine, so its operator listener knows."""
    operator = settings.operator
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            answer = await ask_operator_listener(operator.host, operator.port, "/readyz")
    except (OSError, TimeoutError, ValueError):
        return ProbeResult(False, "The gateway's operator listener does not answer.")
    line = str(answer.get(f"backend {backend}", "unknown"))
    return ProbeResult(line.startswith("ready"), line)


async def ask_operator_listener(host: str, port: int, path: str) -> dict[str, Any]:
    """An empty dict if the document is no object. Raises OSError if the connection fails, ValueError if it's
    no JSON or too long."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read(_ANSWER_BYTES_MAX)
        while piece := await reader.read(_ANSWER_BYTES_MAX):
            answer += piece
            if len(answer) > _ANSWER_BYTES_MAX:
                raise ValueError("the answer is too long")
    finally:
        writer.close()
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    return document if isinstance(document, dict) else {}
