"""Rows to the objects that admission uses. The columns are those of `money/holds/statements`'s statements;
`money/holds/admissibility_store` builds the same."""

from collections.abc import Sequence
from typing import Any

from tollkeeper.core.access import KeyStatus, ProjectId, key_status
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    DefaultLimits,
    ProjectState,
)
from tollkeeper.money.holds.spend import Fold, FoldKind, Spend


def account_of(row: tuple[Any, ...], limits: DefaultLimits) -> AccountState:
    return AccountState(
        available_picousd=row[1],
        overage_picousd=row[2],
        spend=Spend(*row[3:6]),
        projects={},
        keys={},
        overage_bound_picousd=limits.overage_bound_picousd if row[7] is None else row[7],
        stopped=row[8],
        is_capped=row[9],
        overage_in_flight_picousd=row[10],
    )


def project_of(row: tuple[Any, ...], limits: DefaultLimits, now_us: int) -> ProjectState:
    requests_per_minute = row[6] or limits.requests_per_minute
    return ProjectState(
        spend=Spend(*row[2:5]),
        archived=row[10],
        live_holds=row[5],
        requests_per_minute=requests_per_minute,
        concurrency=row[7] or limits.concurrency,
        rate_units=requests_per_minute * RATE_UNITS_PER_REQUEST if row[8] is None else row[8],
        rate_at_us=now_us if row[9] is None else row[9],
        models=tuple(row[11] or ()),
    )


def key_status_of(revoked: bool, suspended: bool, expired: bool) -> KeyStatus:
    # The database has compared the expiry with its clock; 0 and 1 only pass on the result.
    return key_status(
        revoked=revoked, suspended=suspended, expires_at=0 if expired else None, now=1
    )


def fold_of(project_id: ProjectId, row: Sequence[Any]) -> Fold:
    kind, was_unsettled, count, hold, settled, overage, overage_max = row
    return Fold(
        project_id=project_id,
        kind=FoldKind(kind),
        was_unsettled=was_unsettled,
        count=count,
        hold_picousd=hold,
        settled_picousd=settled,
        overage_picousd=overage,
        overage_max_picousd=overage_max,
    )
