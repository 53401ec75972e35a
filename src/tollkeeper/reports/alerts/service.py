"""Raises and clears alerts. Each change but that of a detail is logged and, with a webhook,
delivered.

Every process writes its observations to the database. One at a time, under a lock, compares them
with the stored alerts and writes changes and deliveries in one transaction. So each change is
reported once, however many processes there are.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.port import Backend
from tollkeeper.core.runtime.batches import Backoff
from tollkeeper.database.database import Connection, Database
from tollkeeper.database.server_time import read_time
from tollkeeper.money.overage import store as excesses
from tollkeeper.money.overage.rule import Excess
from tollkeeper.money.unsettled import store as unsettled
from tollkeeper.money.unsettled.store import UnsettledSelection
from tollkeeper.money.verification import store as verification
from tollkeeper.policies.calibration import drift_store as drift
from tollkeeper.policies.calibration.drift import Drift, drift_of
from tollkeeper.policies.policy import JudgeFormat
from tollkeeper.reports.alerts import store as alerts
from tollkeeper.reports.alerts.rule import (
    CLEARING_MARGIN,
    FILL_LEVELS,
    AlertChange,
    AlertKind,
    AlertState,
    Condition,
    StandingAlert,
    changes,
)
from tollkeeper.reports.alerts.store import Delivery, Fill

# Calls that stay unsettled for longer raise an alert.
_UNSETTLED_S = 3600
# Without a new wrong usage report for this long, the alert about the backend clears.
_USAGE_REPORT_S = 3600.0
# Without a new excess for this long, the alert about the model clears.
_EXCESS_S = 86_400.0
# In check intervals, so that the observation doesn't expire before the next check repeats it.
_BACKEND_DOWN_INTERVALS = 3
# Between two checks.
INTERVAL_S = 60.0
_DELIVERIES_AT_ONCE = 20
# A delivery that takes longer may be tried by another process.
_CLAIMED_S = 120.0
# Of undelivered alerts in the database, and of attempts to deliver one.
_QUEUED_MAX = 10_000
_ATTEMPTS_MAX = 12
_RETRY_BACKOFF = Backoff(first_s=5, max_s=3600)
# Every pause is shorter, including its jitter.
_PAUSE_S_MAX = 2 * _RETRY_BACKOFF.max_s
_MISREPORTING_MAX = 1000

_log = structlog.get_logger("tollkeeper.alerts")


class DeliveryFailed(Exception):
    """The webhook did not accept an alert."""


# Takes a delivery's id and body. Raises DeliveryFailed.
PostAlert = Callable[[str, str], Awaitable[None]]


class Alerts:
    def __init__(
        self,
        database: Database,
        backends: Mapping[str, Backend],
        post: PostAlert | None,
        judge: JudgeFormat | None = None,
    ) -> None:
        """`post` is None without a webhook. `judge` is for the drift check, which None switches
        off."""
        self._judge = judge
        self._database = database
        self._backends = backends
        self._post = post
        # Backends with a wrong usage report that isn't stored yet, each with the alert's detail.
        self._misreporting: dict[str, str] = {}

    def note_usage_report(self, backend: str, detail: str) -> None:
        """The next check stores it."""
        if len(self._misreporting) < _MISREPORTING_MAX:
            self._misreporting[backend] = detail

    async def alert_list(self) -> list[StandingAlert]:
        """As of the last check of any gateway."""
        async with self._database.autocommit() as connection:
            return await alerts.find_standing(connection)

    async def check(self) -> list[AlertChange]:
        """Returns what this process reported, which is nothing if another one is checking."""
        await self._write_observations()
        async with self._database.transaction() as connection:
            if not await alerts.try_lock(connection):
                return []
            found_changes = changes(
                await self._conditions(connection), await alerts.find_raised(connection)
            )
            for change in found_changes:
                await alerts.write_change(connection, change)
            reported = [
                change for change in found_changes if change.state is not AlertState.UPDATED
            ]
            dropped = 0
            if reported and self._post is not None:
                bodies = [alert_body(change) for change in reported]
                dropped = await alerts.queue_deliveries(connection, bodies, _QUEUED_MAX)
        for change in reported:
            log_change(change)
        if dropped:
            _log.error(
                "alerts were dropped: the queue of undelivered alerts is full", count=dropped
            )
        return reported

    async def deliver(self) -> int:
        """Returns how many alerts the webhook accepted."""
        if self._post is None:
            return 0
        async with self._database.transaction() as connection:
            due = await alerts.claim_deliveries(
                connection,
                limit=_DELIVERIES_AT_ONCE,
                claimed_s=_CLAIMED_S,
                pause_s_max=_PAUSE_S_MAX,
            )
        accepted = 0
        for delivery in due:
            accepted += await self._deliver(self._post, delivery)
        return accepted

    async def _deliver(self, post: PostAlert, delivery: Delivery) -> bool:
        try:
            await post(str(delivery.id), delivery.body)
        except DeliveryFailed as exc:
            if delivery.attempts < _ATTEMPTS_MAX:
                async with self._database.autocommit() as connection:
                    pause_s = _RETRY_BACKOFF.pause_s(delivery.attempts)
                    await alerts.delay_delivery(connection, delivery.id, pause_s)
                _log.warning(
                    "the delivery of an alert failed and will be retried",
                    reason=str(exc),
                    alert=delivery.id,
                )
                return False
            _log.error(
                "an alert was dropped after too many failed deliveries",
                reason=str(exc),
                alert=delivery.id,
            )
            accepted = False
        else:
            accepted = True
        async with self._database.autocommit() as connection:
            await alerts.forget_delivery(connection, delivery.id)
        return accepted

    async def _write_observations(self) -> None:
        misreporting = self._misreporting.copy()
        observed = [
            (_down(name), _BACKEND_DOWN_INTERVALS * INTERVAL_S)
            for name, backend in self._backends.items()
            if not backend.health().ready
        ]
        observed += [
            (_misreported(name, detail), _USAGE_REPORT_S) for name, detail in misreporting.items()
        ]
        if not observed:
            return
        async with self._database.transaction() as connection:
            # Sorted, so processes that write the same rows can't deadlock.
            for condition, valid_s in sorted(observed, key=lambda entry: entry[0].key):
                await alerts.observe(connection, condition, valid_s)
        # Keep what arrived during the transaction.
        self._misreporting = dict(self._misreporting.items() - misreporting.items())

    async def _conditions(self, connection: Connection) -> list[Condition]:
        # Also fills just below the lowest level, because an alert clears only with a margin.
        percent_min = min(FILL_LEVELS) - CLEARING_MARGIN
        conditions = [_filled(fill) for fill in await alerts.find_fills(connection, percent_min)]
        conditions += [_negative(*row) for row in await alerts.find_negative(connection)]
        conditions += [_stopped(*row) for row in await alerts.find_stopped(connection)]
        conditions += await alerts.find_observed(connection, _USAGE_REPORT_S)
        conditions += map(_exceeded, await excesses.find_latest(connection, _EXCESS_S))
        unsettled_before = await read_time(connection, seconds_ago=_UNSETTLED_S)
        totals = await unsettled.total_by_reason(connection, UnsettledSelection(unsettled_before))
        unsettled_count = sum(total.reservations for total in totals)
        if unsettled_count:
            detail = f"{unsettled_count} reservations have been unsettled for more than an hour."
            conditions.append(Condition("unsettled", AlertKind.UNSETTLED, {}, detail))
        if self._judge is not None:
            drifts = map(drift_of, await drift.find_all(connection, self._judge))
            conditions += [
                _drifted(policy_drift) for policy_drift in drifts if policy_drift.is_large
            ]
        verified = await verification.find_verification(connection)
        if verified is not None and verified.differences:
            detail = (
                f"The last verification of the ledger found {verified.differences} differences."
            )
            conditions.append(Condition("ledger", AlertKind.LEDGER_DIFFERENCE, {}, detail))
        return conditions


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
        f"Calls are stopped, because the balance fell below zero by more than the overage bound. The "
        f"balance is now {usd_from_picousd(balance_picousd)} USD. `tollkeeper overage clear` allows "
        f"calls again.",
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


def _exceeded(excess: Excess) -> Condition:
    return Condition(
        f"{AlertKind.EXCEEDED_HOLD}:{excess.backend}:{excess.model}",
        AlertKind.EXCEEDED_HOLD,
        {"model": excess.model, "backend": excess.backend},
        f"A call cost {usd_from_picousd(excess.cost_picousd)} USD, although its hold was "
        f"{usd_from_picousd(excess.hold_picousd)} USD. Other calls to the model are now expected to "
        "exceed their holds as much, so fewer can be in flight at once.",
    )


def _drifted(policy_drift: Drift) -> Condition:
    counts = policy_drift.counts
    return Condition(
        f"{AlertKind.POLICY_DRIFT}:{counts.policy_id}",
        AlertKind.POLICY_DRIFT,
        {"organization_id": str(counts.organization_id), "policy_id": counts.policy_id},
        f"The recent probabilities of the policy {counts.policy_name!r} differ from those at the "
        f"time of calibration number {counts.calibration}. Label newer texts and calibrate the policy "
        "again.",
    )


def alert_body(change: AlertChange) -> str:
    """In JSON."""
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


def log_change(change: AlertChange) -> None:
    alert = change.alert
    write = _log.warning if change.state is AlertState.RAISED else _log.info
    write(
        f"alert {change.state}",
        kind=alert.kind.value,
        level=alert.level,
        detail=alert.detail,
        **alert.subject,
    )
