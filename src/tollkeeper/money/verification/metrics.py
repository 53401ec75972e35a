"""The whole ledger's metrics, without tenant data. All workers read the same ledger, so `/metrics`
shows what any of them wrote last."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from prometheus_client import Gauge

from tollkeeper.core.errors import DeadlineExceeded
from tollkeeper.database.database import Database
from tollkeeper.money.credit import store as accounts
from tollkeeper.money.credit.store import Totals
from tollkeeper.money.unsettled import store as unsettled
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.unsettled.store import ALL_UNSETTLED
from tollkeeper.money.verification import store as verification
from tollkeeper.money.verification.store import LedgerVerification

_PICOUSD_PER_USD = 10**12
_LAST_WRITTEN: Literal["mostrecent"] = "mostrecent"

_UNSETTLED = Gauge(
    "tollkeeper_unsettled_reservations",
    "Reservations whose cost is unknown, by reason.",
    ["reason"],
    multiprocess_mode=_LAST_WRITTEN,
)
_OLDEST_UNSETTLED = Gauge(
    "tollkeeper_oldest_unsettled_seconds",
    "Seconds since the oldest unsettled reservation became unsettled; 0 if there is none.",
    multiprocess_mode=_LAST_WRITTEN,
)
_NEGATIVE = Gauge(
    "tollkeeper_negative_accounts",
    "Organizations whose balance is below zero.",
    multiprocess_mode=_LAST_WRITTEN,
)
_STOPPED = Gauge(
    "tollkeeper_stopped_accounts",
    "Organizations whose calls are stopped, because their balance fell below zero by more than the "
    "overage bound.",
    multiprocess_mode=_LAST_WRITTEN,
)
_HELD = Gauge(
    "tollkeeper_held_usd",
    "USD that running calls hold. The ledger is exact.",
    multiprocess_mode=_LAST_WRITTEN,
)
_UNSETTLED_USD = Gauge(
    "tollkeeper_unsettled_usd",
    "USD that are held for calls whose cost is unknown.",
    multiprocess_mode=_LAST_WRITTEN,
)
_OLDEST_HOLD = Gauge(
    "tollkeeper_oldest_hold_seconds",
    "Age of the oldest hold that is neither resolved nor unsettled; 0 if there is none.",
    multiprocess_mode=_LAST_WRITTEN,
)

_DIFFERENCES = Gauge(
    "tollkeeper_ledger_differences",
    "Differences that the last verification of the ledger found.",
    multiprocess_mode=_LAST_WRITTEN,
)
_VERIFIED = Gauge(
    "tollkeeper_ledger_verified_timestamp_seconds",
    "Unix time of the last verification of the ledger; 0 if there was none.",
    multiprocess_mode=_LAST_WRITTEN,
)


class ReasonLabel(StrEnum):
    """A reason is free text, which can't be a metric label."""

    PROCESS_DIED = "process_died"
    # The database has lost the call or its end.
    END_LOST = "end_lost"
    GATEWAY_FAILED = "gateway_failed"
    DEADLINE = "deadline"
    USAGE = "usage"
    BACKEND = "backend"
    OTHER = "other"


def reason_label(reason: str) -> ReasonLabel:
    text = reason.lower()
    if text == DeadlineExceeded().message.lower():
        return ReasonLabel.DEADLINE
    if text.startswith("the process"):
        return ReasonLabel.PROCESS_DIED
    if text.startswith("the database"):
        return ReasonLabel.END_LOST
    if text.startswith("the gateway"):
        return ReasonLabel.GATEWAY_FAILED
    if "usage" in text:
        return ReasonLabel.USAGE
    if "backend" in text:
        return ReasonLabel.BACKEND
    return ReasonLabel.OTHER


def show_unsettled(reservations: Mapping[ReasonLabel, int], oldest_age_s: float) -> None:
    for label in ReasonLabel:
        _UNSETTLED.labels(label.value).set(reservations.get(label, 0))
    _OLDEST_UNSETTLED.set(oldest_age_s)


def show_totals(totals: Totals) -> None:
    _NEGATIVE.set(totals.negative)
    _HELD.set(totals.held_picousd / _PICOUSD_PER_USD)
    _UNSETTLED_USD.set(totals.unsettled_picousd / _PICOUSD_PER_USD)


def show_stopped_accounts(count: int) -> None:
    _STOPPED.set(count)


def show_verification(last: LedgerVerification | None) -> None:
    _DIFFERENCES.set(0 if last is None else last.differences)
    _VERIFIED.set(0 if last is None else last.verified_at)


def show_oldest_hold(age_s: float) -> None:
    _OLDEST_HOLD.set(age_s)


class LedgerWatch:
    """Updates them at an interval, not for each /metrics, because they need queries."""

    def __init__(self, database: Database, open_holds: OpenHolds) -> None:
        self._database = database
        self._open_holds = open_holds

    async def refresh(self) -> None:
        async with self._database.autocommit() as connection:
            reasons = await unsettled.total_by_reason(connection, ALL_UNSETTLED)
            totals = await accounts.read_totals(connection)
            oldest_hold_s = await self._open_holds.oldest_age_s(connection)
            verified = await verification.find_verification(connection)
        counts: Counter[ReasonLabel] = Counter()
        for reason_total in reasons:
            counts[reason_label(reason_total.reason)] += reason_total.reservations
        show_unsettled(counts, max([0, *(reason_total.oldest_age_s for reason_total in reasons)]))
        show_totals(totals)
        show_stopped_accounts(totals.stopped)
        show_oldest_hold(oldest_hold_s)
        show_verification(verified)
