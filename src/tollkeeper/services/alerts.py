"""Raises and clears alerts, reports each change once, and delivers it to a webhook.

All processes observe, and one at a time decides, under a database lock: it compares the current
problems with the last reported ones, and writes the difference and its deliveries in one
transaction. So each change is reported once, however many processes there are.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.alerts import (
    CLEARED_BELOW,
    FILL_LEVELS,
    AlertChange,
    AlertKind,
    AlertState,
    Condition,
    changes,
)
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.policy import JudgeFormat
from tollkeeper.domain.views import StandingAlert
from tollkeeper.services.batches import Backoff
from tollkeeper.services.policies.drift import Drift, drift_of
from tollkeeper.storage import alerts, drift, money_totals, unsettled
from tollkeeper.storage.alerts import Delivery, Fill
from tollkeeper.storage.database import Connection, Database
from tollkeeper.storage.unsettled import UnsettledSelection

_UNSETTLED_S = 3600
# An inconsistent usage report raises an alert, which is cleared after this time without another
# one.
_USAGE_REPORT_S = 3600.0
# An observation is valid for this many intervals, so that it lasts until the next one.
_SEEN_INTERVALS = 3
# The interval between two checks.
INTERVAL_S = 60.0
_BATCH = 20
# How long one delivery may take before another process may try it.
_CLAIMED_S = 120.0
_QUEUED_MAX = 10_000
_ATTEMPTS_MAX = 12
_AGAIN = Backoff(first_s=5, max_s=3600)
_WHOLE_BUFFER = 1000

_log = structlog.get_logger("tollkeeper.alerts")


class DeliveryFailed(Exception):
    """The webhook did not accept an alert."""


# Posts a body; raises DeliveryFailed. None if there is no webhook.
PostAlert = Callable[[str, str], Awaitable[None]]


class Alerts:
    def __init__(
        self,
        database: Database,
        backends: Mapping[str, Backend],
        post: PostAlert | None,
        judge: JudgeFormat | None = None,
    ) -> None:
        """`judge` is the judge whose current values are compared with those at calibration."""
        self._judge = judge
        self._database = database
        self._backends = backends
        self._post = post
        # Backends with inconsistent usage reports since the last check.
        self._misreporting: dict[str, str] = {}

    def note_usage_report(self, backend: str, detail: str) -> None:
        """Records an inconsistent usage report, which the next check stores."""
        if len(self._misreporting) < _WHOLE_BUFFER:
            self._misreporting[backend] = detail

    async def alert_list(self) -> list[StandingAlert]:
        """Returns the problems that the last check of any gateway found."""
        async with self._database.reading() as connection:
            return await alerts.find_standing(connection)

    async def check(self) -> list[AlertChange]:
        """Checks once. Returns the changes that this process has reported."""
        await self._write_observations()
        async with self._database.transaction() as connection:
            if not await alerts.try_lock(connection):
                return []
            found = changes(
                await self._conditions(connection), await alerts.find_raised(connection)
            )
            for change in found:
                await alerts.write_change(connection, change)
            reported = [change for change in found if change.state is not AlertState.UPDATED]
            given_up = 0
            if reported and self._post is not None:
                bodies = [alert_body(change) for change in reported]
                given_up = await alerts.queue_deliveries(connection, bodies, _QUEUED_MAX)
        for change in reported:
            tell(change)
        if given_up:
            _log.error("alerts were given up: too many are not delivered", count=given_up)
        return reported

    async def deliver(self) -> int:
        """Delivers due alerts; returns the number that the webhook accepted."""
        if self._post is None:
            return 0
        async with self._database.transaction() as connection:
            due = await alerts.claim_deliveries(connection, limit=_BATCH, claimed_s=_CLAIMED_S)
        taken = 0
        for delivery in due:
            taken += await self._deliver(self._post, delivery)
        return taken

    async def _deliver(self, post: PostAlert, delivery: Delivery) -> bool:
        try:
            await post(str(delivery.id), delivery.body)
        except DeliveryFailed as exc:
            if delivery.attempts < _ATTEMPTS_MAX:
                async with self._database.reading() as connection:
                    pause_s = _AGAIN.pause_s(delivery.attempts)
                    await alerts.delay_delivery(connection, delivery.id, pause_s)
                _log.warning("an alert is delivered again", reason=str(exc), alert=delivery.id)
                return False
            _log.error("an alert is given up", reason=str(exc), alert=delivery.id)
            taken = False
        else:
            taken = True
        async with self._database.reading() as connection:
            await alerts.forget_delivery(connection, delivery.id)
        return taken

    async def _write_observations(self) -> None:
        noted, self._misreporting = self._misreporting, {}
        seen = [
            (_down(name), _SEEN_INTERVALS * INTERVAL_S)
            for name, backend in self._backends.items()
            if not backend.health().ready
        ]
        seen += [(_misreported(name, detail), _USAGE_REPORT_S) for name, detail in noted.items()]
        if not seen:
            return
        async with self._database.transaction() as connection:
            for condition, counts_s in sorted(seen, key=lambda found: found[0].key):
                await alerts.observe(connection, condition, counts_s)

    async def _conditions(self, connection: Connection) -> list[Condition]:
        lowest = min(FILL_LEVELS) - CLEARED_BELOW
        found = [_filled(fill) for fill in await alerts.find_fills(connection, lowest)]
        found += [_negative(*row) for row in await alerts.find_negative(connection)]
        found += [_stopped(*row) for row in await alerts.find_stopped(connection)]
        found += await alerts.find_observed(connection)
        before = await unsettled.read_time_before(connection, _UNSETTLED_S)
        totals = await unsettled.total_by_reason(connection, UnsettledSelection(before))
        waiting = sum(total.reservations for total in totals)
        if waiting:
            detail = f"{waiting} reservations have been unsettled for more than an hour."
            found.append(Condition("unsettled", AlertKind.UNSETTLED, {}, detail))
        if self._judge is not None:
            drifts = map(drift_of, await drift.find_all(connection, self._judge))
            found += [_drifted(one) for one in drifts if one.is_large]
        verified = await money_totals.find_verification(connection)
        if verified is not None and verified.differences:
            detail = (
                f"The last verification of the ledger found {verified.differences} differences."
            )
            found.append(Condition("ledger", AlertKind.LEDGER_DIFFERENCE, {}, detail))
        return found


def _filled(fill: Fill) -> Condition:
    subject = {"organization_id": str(fill.organization_id)}
    if fill.project_id is not None:
        subject["project_id"] = str(fill.project_id)
    if fill.key_id is not None:
        subject["key_id"] = str(fill.key_id)
    if fill.period is not None:
        subject["period"] = fill.period
    used, amount = usd_from_picousd(fill.used_picousd), usd_from_picousd(fill.amount_picousd)
    return Condition(
        key=":".join((fill.kind, *subject.values())),
        kind=fill.kind,
        subject=subject,
        detail=f"{used} of {amount} USD are used: {fill.percent} %.",
        percent=fill.percent,
    )


def _negative(organization_id: OrganizationId, available_picousd: int) -> Condition:
    return Condition(
        f"{AlertKind.NEGATIVE_BALANCE}:{organization_id}",
        AlertKind.NEGATIVE_BALANCE,
        {"organization_id": str(organization_id)},
        f"The balance is {usd_from_picousd(available_picousd)} USD.",
    )


def _stopped(organization_id: OrganizationId, balance_picousd: int) -> Condition:
    return Condition(
        f"{AlertKind.STOPPED}:{organization_id}",
        AlertKind.STOPPED,
        {"organization_id": str(organization_id)},
        f"Calls are stopped, because the balance fell below its bound; it is now "
        f"{usd_from_picousd(balance_picousd)} USD. `tollkeeper overage clear` ends this.",
    )


def _down(backend: str) -> Condition:
    return Condition(
        f"{AlertKind.BACKEND_DOWN}:{backend}",
        AlertKind.BACKEND_DOWN,
        {"backend": backend},
        "No replica of the backend is healthy.",
    )


def _misreported(backend: str, detail: str) -> Condition:
    return Condition(
        f"{AlertKind.USAGE_REPORT}:{backend}", AlertKind.USAGE_REPORT, {"backend": backend}, detail
    )


def _drifted(found: Drift) -> Condition:
    counts = found.counts
    return Condition(
        f"{AlertKind.POLICY_DRIFT}:{counts.policy_id}",
        AlertKind.POLICY_DRIFT,
        {"organization_id": str(counts.organization_id), "policy_id": counts.policy_id},
        f"Values of the policy {counts.policy_name!r} differ from those at its calibration "
        f"{counts.calibration}: label newer texts and calibrate it again.",
    )


def alert_body(change: AlertChange) -> str:
    """Builds the webhook's body."""
    alert = change.alert
    document = {
        "type": "alert",
        "kind": alert.kind,
        "state": change.state,
        "level": alert.level,
        "subject": alert.subject,
        "detail": alert.detail,
        "at": int(time.time()),
    }
    return msgspec.json.encode(document).decode()


def tell(change: AlertChange) -> None:
    """Writes a log line."""
    alert = change.alert
    write = _log.warning if change.state is AlertState.RAISED else _log.info
    write(
        f"alert {change.state}",
        kind=alert.kind.value,
        level=alert.level,
        detail=alert.detail,
        **alert.subject,
    )
