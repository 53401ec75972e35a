"""/healthz, /readyz, /alerts and /metrics on a separate socket, without data of tenants."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tollkeeper.http.exchange import Exchange

# The supervisor's own; workers write files.
_READY = Gauge("tollkeeper_ready", "1 if /readyz returns 200, else 0.")
_REACHABLE = Gauge("tollkeeper_database_reachable", "1 if a new connection works, else 0.")
_WRITABLE = Gauge("tollkeeper_database_writable", "1 if holds can be written, else 0.")
_OLD_SERVERS = Gauge(
    "tollkeeper_old_database_servers",
    "Database servers that accept writes and are not the newest.",
)


@dataclass(frozen=True, slots=True)
class Readiness:
    # A line for each part, such as the database.
    parts: dict[str, str]
    ready: bool
    # For a new connection. Open ones may work without.
    database_reachable: bool = True
    # Holds can be written.
    database_writable: bool = True
    is_stopping: bool = False
    # A sentence for each that still accepts writes although a failover has replaced it.
    old_servers: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        if self.is_stopping:
            return "stopping"
        return "ready" if self.ready else "not ready"


class OperatorListener:
    def __init__(
        self,
        find_readiness: Callable[[], Awaitable[Readiness]],
        get_alerts: Callable[[], dict[str, Any]],
        metrics_folder: str,
    ) -> None:
        self._find_readiness = find_readiness
        self._get_alerts = get_alerts
        self._metrics_folder = metrics_folder

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.head.method not in ("GET", "HEAD"):
            _answer(exchange, 405, {"status": "method not allowed"}, allow=b"GET, HEAD")
            return
        match exchange.head.path:
            case b"/healthz":
                _answer(exchange, 200, {"status": "ok"})
            case b"/readyz":
                readiness = await self._find_readiness()
                code = 200 if readiness.status == "ready" else 503
                _answer(exchange, code, {"status": readiness.status, **readiness.parts})
            case b"/alerts":
                _answer(exchange, 200, self._get_alerts())
            case b"/metrics":
                _send(exchange, 200, CONTENT_TYPE_LATEST.encode(), self._metrics())
            case _:
                _answer(exchange, 404, {"status": "not found"})

    def _metrics(self) -> bytes:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self._metrics_folder)  # type: ignore[no-untyped-call]
        for gauge in (_READY, _REACHABLE, _WRITABLE, _OLD_SERVERS):
            registry.register(gauge)
        return generate_latest(registry)


def show_readiness(readiness: Readiness) -> None:
    _READY.set(readiness.status == "ready")
    _REACHABLE.set(readiness.database_reachable)
    _WRITABLE.set(readiness.database_writable)
    _OLD_SERVERS.set(len(readiness.old_servers))


def _answer(
    exchange: Exchange, status: int, document: dict[str, Any], *, allow: bytes = b""
) -> None:
    body = json.dumps(document).encode()
    _send(exchange, status, b"application/json", body, allow=allow)


def _send(
    exchange: Exchange, status: int, content_type: bytes, body: bytes, *, allow: bytes = b""
) -> None:
    headers = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
    if allow:
        headers += b"allow: %b\r\n" % allow
    exchange.answer(status, headers, body)
