"""/healthz, /readyz and /metrics on a listener of their own, which serves no tenant data."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tollkeeper.api.http.sse import Send


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can answer calls, with one line for each part that it needs."""

    parts: dict[str, str]
    ready: bool


class OperatorListener:
    """An ASGI application over a readiness probe and the workers' metrics folder."""

    def __init__(self, probe: Callable[[], Awaitable[Readiness]], metrics_folder: str) -> None:
        self._probe = probe
        self._metrics_folder = metrics_folder

    async def __call__(self, scope: MutableMapping[str, Any], _receive: Any, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"status": "method not allowed"}, allow=b"GET, HEAD")
            return
        match scope["path"]:
            case "/healthz":
                await _answer(send, 200, {"status": "ok"})
            case "/readyz":
                readiness = await self._probe()
                status = "ready" if readiness.ready else "not ready"
                await _answer(
                    send, 200 if readiness.ready else 503, {"status": status, **readiness.parts}
                )
            case "/metrics":
                await _send(send, 200, CONTENT_TYPE_LATEST.encode(), self._metrics())
            case _:
                await _answer(send, 404, {"status": "not readiness"})

    def _metrics(self) -> bytes:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self._metrics_folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


async def _answer(send: Send, status: int, document: dict[str, str], *, allow: bytes = b"") -> None:
    body = json.dumps(document).encode()
    await _send(send, status, b"application/json", body, allow=allow)


async def _send(
    send: Send, status: int, content_type: bytes, body: bytes, *, allow: bytes = b""
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    if allow:
        headers.append((b"allow", allow))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
