"""The alerts that must be reported even while the database is down, in the supervisor's memory. All others
are in the database. Each gateway reports its own, with its host name."""

import socket
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.batches import Backoff, Batches, Limit
from tollkeeper.entry.operator_listener import Readiness
from tollkeeper.reports.alerts.rule import (
    AlertKind,
    AlertState,
    Condition,
    RaisedAlert,
    StandingAlert,
    changes,
)
from tollkeeper.reports.alerts.service import DeliveryFailed, PostAlert, alert_body, log_change

# Engine and backends may not be ready at first, so NOT_READY waits, unless the gateway was ready before.
_START_S = 60.0
# For the webhook.
_QUEUED_MAX = 100
_RETRIES = Backoff(first_s=5, max_s=600)
_log = structlog.get_logger("tollkeeper.alerts")


class ProcessAlerts:
    def __init__(self, post: PostAlert | None) -> None:
        self._post = post
        self._starts_until = time.monotonic() + _START_S
        # By key, with the Unix time.
        self._raised: dict[str, tuple[RaisedAlert, int]] = {}
        self._deliveries: Batches[tuple[str, str]] = Batches(
            self._deliver,
            name="alerts of this process",
            batch=Limit(1),
            queue=Limit(_QUEUED_MAX),
            give_up=_give_up,
            backoff=_RETRIES,
        )

    @property
    def document(self) -> dict[str, Any]:
        """For `/alerts`."""
        standing = [
            StandingAlert(alert.kind, alert.level, alert.subject, alert.detail, raised_at)
            for alert, raised_at in self._raised.values()
        ]
        return {"data": msgspec.to_builtins(standing)}

    def check(self, readiness: Readiness) -> None:
        """Raises, updates and clears; logs each and sends it to the webhook."""
        if readiness.ready:
            self._starts_until = 0.0
        conditions = _conditions(readiness)
        if time.monotonic() < self._starts_until:
            conditions = [one for one in conditions if one.kind is not AlertKind.NOT_READY]
        reported = {key: alert for key, (alert, _) in self._raised.items()}
        for change in changes(conditions, reported):
            key = change.alert.key
            if change.state is AlertState.UPDATED:
                self._raised[key] = change.alert, self._raised[key][1]
                continue
            if change.state is AlertState.RAISED:
                self._raised[key] = change.alert, int(time.time())
            else:
                del self._raised[key]
            log_change(change)
            if self._post is not None:
                self._deliveries.add((str(uuid4()), alert_body(change)))

    async def close(self) -> None:
        await self._deliveries.stop()

    async def _deliver(self, batch: list[tuple[str, str]]) -> None:
        assert self._post is not None
        ((delivery_id, body),) = batch
        try:
            await self._post(delivery_id, body)
        except DeliveryFailed as exc:
            raise Unavailable(str(exc)) from exc


def _conditions(readiness: Readiness) -> list[Condition]:
    """Old servers that accept writes; only new connections failing; and the main reason for not being ready.
    Old servers explain an unreachable database, so that isn't said too."""
    details: dict[AlertKind, str] = {}
    if readiness.old_servers:
        details[AlertKind.OLD_DATABASE_SERVER] = "; ".join(readiness.old_servers)
    if readiness.database_writable and not readiness.database_reachable:
        details[AlertKind.DATABASE_REFUSES_CONNECTIONS] = readiness.parts["database"]
    if readiness.ready:
        pass
    elif readiness.database_writable:
        lines = (f"{part}: {line}" for part, line in readiness.parts.items())
        details[AlertKind.NOT_READY] = "; ".join(lines)
    elif readiness.database_reachable:
        details[AlertKind.DATABASE_NOT_WRITABLE] = readiness.parts["holds"]
    elif not readiness.old_servers:
        details[AlertKind.DATABASE_UNREACHABLE] = readiness.parts["database"]
    subject = {"gateway": socket.gethostname()}
    return [Condition(kind.value, kind, subject, detail) for kind, detail in details.items()]


def _give_up(deliveries: Sequence[tuple[str, str]]) -> None:
    _log.error("alerts of this process were not delivered", count=len(deliveries))
