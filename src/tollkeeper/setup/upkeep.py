"""Runs a worker's background tasks ("chores"), each at its own interval."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.database.database import Database
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.months.service import LedgerMonths
from tollkeeper.money.overage.service import Excesses
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution, UnsettledRule
from tollkeeper.money.unsettled.recovery import Lease, Recovered, Recovery
from tollkeeper.money.verification.metrics import LedgerWatch
from tollkeeper.money.verification.service import RegularVerification
from tollkeeper.reports.activity.service import Activity
from tollkeeper.reports.alerts.service import INTERVAL_S, Alerts
from tollkeeper.reports.judge_costs import JudgeCosts
from tollkeeper.reports.replicas.service import PUBLISH_INTERVAL_S, ReplicaReports
from tollkeeper.setup.process_watch import ProcessWatch
from tollkeeper.tenants.audit.service import Audit
from tollkeeper.tenants.idempotency import Idempotency
from tollkeeper.tenants.key_use import KeyUse

Chore: TypeAlias = Callable[[], Awaitable[None]]

# In seconds, between two runs of a chore.
_TRY_HOLD_INTERVAL_S = 1
_KEY_USE_INTERVAL_S = 10
_EXCESSES_INTERVAL_S = 2
_JUDGE_COSTS_INTERVAL_S = 2
_SECRETS_INTERVAL_S = 60
_REFUSALS_INTERVAL_S = 60
_PARTITIONS_INTERVAL_S = 600
_UNREGISTERED_INTERVAL_S = 600
_UNSETTLED_INTERVAL_S = 600
_WATCH_INTERVAL_S = 60
_AUDIT_INTERVAL_S = 600
_VERIFY_INTERVAL_S = 600
_SAMPLE_INTERVAL_S = 2
_DELIVERY_INTERVAL_S = 5
# Of an expensive chore, and the longest pause that follows from it.
_SHARE_OF_TIME = 0.01
_EXPENSIVE_PAUSE_S_MAX = 600
# For tasks that survive a cancellation.
_CANCEL_AGAIN_S = 0.1

_log = structlog.get_logger("tollkeeper.upkeep")


@dataclass(kw_only=True, eq=False)
class Upkeep:
    database: Database
    ledger: Ledger
    excesses: Excesses
    key_use: KeyUse
    judge_costs: JudgeCosts
    idempotency: Idempotency
    lease: Lease
    recovery: Recovery
    bulk_resolution: BulkResolution
    unsettled_rule: UnsettledRule | None
    ledger_watch: LedgerWatch
    ledger_months: LedgerMonths
    activity: Activity
    audit: Audit
    process_watch: ProcessWatch | None = None
    replica_reports: ReplicaReports | None = None
    alerts: Alerts | None = None
    regular_verification: RegularVerification | None = None
    _tasks: list[asyncio.Task[None]] = field(init=False, repr=False, default_factory=list)

    @property
    def chores(self) -> tuple[tuple[float, Chore], ...]:
        """With the seconds between two runs."""
        return (
            (self.lease.interval_s, self.send_heartbeat),
            (self.lease.interval_s, self.recover_dead),
            (_TRY_HOLD_INTERVAL_S, self.try_hold),
            (_EXCESSES_INTERVAL_S, self.load_excesses),
            (_UNREGISTERED_INTERVAL_S, self.recover_unregistered),
            (_UNSETTLED_INTERVAL_S, self.resolve_unsettled),
            (_WATCH_INTERVAL_S, self.watch_ledger),
            (_SAMPLE_INTERVAL_S, self.watch_process),
            (PUBLISH_INTERVAL_S, self.publish_replicas),
            (INTERVAL_S, self.alert),
            (_DELIVERY_INTERVAL_S, self.deliver_alerts),
            (_KEY_USE_INTERVAL_S, self.write_key_use),
            (_JUDGE_COSTS_INTERVAL_S, self.write_judge_costs),
            (_SECRETS_INTERVAL_S, self.forget_secrets),
            (_REFUSALS_INTERVAL_S, self.write_refusals),
            (_PARTITIONS_INTERVAL_S, self.keep_partitions),
            (_PARTITIONS_INTERVAL_S, self.create_ledger_months),
            (_AUDIT_INTERVAL_S, self.delete_old_audit),
            (_VERIFY_INTERVAL_S, self.verify_ledger),
        )

    def start(self) -> None:
        # They read all accounts.
        expensive = (self.watch_ledger, self.alert)
        self._tasks = [
            asyncio.create_task(_repeat(interval_s, chore, is_expensive=chore in expensive))
            for interval_s, chore in self.chores
        ]

    async def stop(self) -> None:
        # A task may miss a cancellation: in Python 3.11, `wait_for` swallows one that arrives in
        # the iteration in which it ends. So cancel again until it's done.
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
        await _attempt(self.write_key_use)

    async def send_heartbeat(self) -> None:
        await self.lease.heartbeat()

    async def try_hold(self) -> None:
        """Checks that the ledger can write holds."""
        await self.ledger.try_hold()

    async def load_excesses(self) -> None:
        """What other processes have seen."""
        await self.excesses.load()

    async def recover_dead(self) -> None:
        await self._recover(self.recovery.recover_silent)

    async def recover_unregistered(self) -> None:
        """Unlike `recover_dead`, also finds holds of processes that aren't in the database."""
        await self._recover(self.recovery.ledger_recover)

    async def _recover(self, sweep: Callable[[], Awaitable[Recovered]]) -> None:
        if not self.lease.steady:
            return  # Right after a database outage, live processes look dead.
        recovered = await sweep()
        if recovered.processes:
            _log.warning(
                "holds of dead processes are unsettled now",
                processes=recovered.processes,
                reservations=recovered.reservations,
            )
        if recovered.forgotten:
            _log.error(
                "the database has lost how calls of this process ended: they are unsettled now",
                reservations=recovered.forgotten,
            )

    async def resolve_unsettled(self) -> None:
        """Only if the settings have a rule for it."""
        rule = self.unsettled_rule
        if rule is None:
            return
        resolved = await self.bulk_resolution.apply_rule(rule)
        if resolved.reservations:
            _log.warning(
                "unsettled reservations were resolved by the rule of the settings",
                rule=rule.resolved_by,
                reservations=resolved.reservations,
                hold=usd_from_picousd(resolved.hold_picousd),
            )

    async def watch_ledger(self) -> None:
        await self.ledger_watch.refresh()

    async def verify_ledger(self) -> None:
        if self.regular_verification is not None:
            await self.regular_verification.verify_if_due()

    async def watch_process(self) -> None:
        if self.process_watch is not None:
            await self.process_watch.sample()

    async def publish_replicas(self) -> None:
        if self.replica_reports is not None:
            await self.replica_reports.publish()

    async def alert(self) -> None:
        if self.alerts is not None:
            await self.alerts.check()

    async def deliver_alerts(self) -> None:
        if self.alerts is not None:
            await self.alerts.deliver()

    async def write_key_use(self) -> None:
        await self.key_use.write(self.database)

    async def write_judge_costs(self) -> None:
        await self.judge_costs.write()

    async def forget_secrets(self) -> None:
        await self.idempotency.forget_old_secrets(self.database)

    async def write_refusals(self) -> None:
        self.activity.write_refusals()

    async def keep_partitions(self) -> None:
        await self.activity.keep_partitions()

    async def delete_old_audit(self) -> None:
        await self.audit.delete_old()

    async def create_ledger_months(self) -> None:
        await self.ledger_months.keep_months()


async def _repeat(interval_s: float, chore: Chore, *, is_expensive: bool) -> None:
    while True:
        began = time.monotonic()
        await _attempt(chore)
        took_s = time.monotonic() - began
        await asyncio.sleep(expensive_pause_s(interval_s, took_s) if is_expensive else interval_s)


def expensive_pause_s(interval_s: float, took_s: float) -> float:
    """At least `interval_s`, but longer after a slow run, up to `_EXPENSIVE_PAUSE_S_MAX`, so the
    chore runs only a hundredth of the time."""
    return max(interval_s, min(took_s / _SHARE_OF_TIME, _EXPENSIVE_PAUSE_S_MAX))


async def _attempt(chore: Chore) -> None:
    """Only logs a failure, because the chore runs again."""
    try:
        await chore()
    except TollkeeperError as exc:
        _log.warning("upkeep failed", chore=chore.__name__, reason=exc.message)
    except Exception:  # noqa: BLE001 - a failed chore must not stop the others
        # For example, without further heartbeats other processes would take this worker for dead.
        _log.exception("upkeep failed", chore=chore.__name__)
