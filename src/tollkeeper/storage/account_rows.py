"""Converts database rows to the objects that admission uses. The column numbers refer to the
statements in `storage/ledger`. `storage/admissibility` builds rows with the same columns."""

from collections.abc import Sequence
from typing import Any

from tollkeeper.domain.access import KeyStatus, ProjectId, key_status
from tollkeeper.domain.admission import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    DefaultLimits,
    ProjectState,
)
from tollkeeper.domain.caps import Cap, CapPeriod
from tollkeeper.domain.spend import Fold, FoldKind, Spend


def account_of(row: tuple[Any, ...], limits: DefaultLimits) -> AccountState:
    return AccountState(
        available_picousd=row[1],
        overage_picousd=row[2],
        spend=Spend(*row[3:9]),
        cap=_cap(row[9]),
        projects={},
        keys={},
        overage_bound_picousd=limits.overage_bound_picousd if row[11] is None else row[11],
        stopped=row[12],
        spending_day=row[13],
        overage_in_flight_picousd=row[14],
    )


def project_of(row: tuple[Any, ...], limits: DefaultLimits, now_us: int) -> ProjectState:
    requests_per_minute = row[10] or limits.requests_per_minute
    return ProjectState(
        spend=Spend(*row[2:8]),
        cap=_cap(row[8]),
        archived=row[14],
        live_holds=row[9],
        requests_per_minute=requests_per_minute,
        concurrency=row[11] or limits.concurrency,
        rate_units=requests_per_minute * RATE_UNITS_PER_REQUEST if row[12] is None else row[12],
        rate_at_us=now_us if row[13] is None else row[13],
        models=tuple(row[15] or ()),
    )


def _cap(pair: list[str | None]) -> Cap | None:
    amount, period = pair
    if amount is None or period is None:
        return None
    return Cap(amount_picousd=int(amount), period=CapPeriod(period))


def key_status_of(revoked: bool, suspended: bool, expired: bool) -> KeyStatus:
    # The database has already compared the expiry with its clock. The times 0 and 1 only pass on the
    # result of this comparison.
    return key_status(
        revoked=revoked, suspended=suspended, expires_at=0 if expired else None, now=1
    )


def fold_of(project_id: ProjectId, row: Sequence[Any]) -> Fold:
    kind, was_unsettled, month, count, hold, settled, overage, overage_max = row
    return Fold(
        project_id=project_id,
        kind=FoldKind(kind),
        was_unsettled=was_unsettled,
        month=month,
        count=count,
        hold_picousd=hold,
        settled_picousd=settled,
        overage_picousd=overage,
        overage_max_picousd=overage_max,
    )
