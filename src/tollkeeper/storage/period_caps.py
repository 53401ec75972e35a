"""Contains the SQL for period caps: caps by day, week or month that have their own counters of held
and settled amounts.

Every statement that changes period caps runs while the organization's account is locked. An
admission reads the period caps in a separate round trip, which is left out for organizations
without period caps.
"""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tollkeeper.domain.access import KeyId, OrganizationId
from tollkeeper.domain.admission import AccountState
from tollkeeper.domain.caps import CapPeriod, CapSubject, PeriodCap, ResolvedHold
from tollkeeper.domain.ledger import LockedAccounts
from tollkeeper.domain.months import FIRST_ID
from tollkeeper.domain.spend import Fold
from tollkeeper.storage.round_trips import BoundStatement, Rows, Statement

_encode = msgspec.json.Encoder().encode


# A resolved reservation: its organization, its id, and the fold (the change that its resolution
# makes to the account).
ResolvedReservation: TypeAlias = tuple[OrganizationId, UUID, Fold]


def read_statements(
    locked: LockedAccounts, ended: Sequence[ResolvedReservation], keys: Iterable[KeyId]
) -> tuple[BoundStatement, ...]:
    """Returns the queries whose rows `with_period_caps` needs. Returns no query if no locked
    account has period caps."""
    states = {
        organization_id: state
        for organization_id, state in locked.states.items()
        if state.spending_day is not None
    }
    if not states:
        return ()
    capped: list[UUID] = list(states)
    pairs = [
        (organization_id, project_id)
        for organization_id, state in states.items()
        for project_id in state.projects
    ]
    ids = [reservation_id for _, reservation_id, _ in ended]
    reservations = (capped, ids, min(ids, default=FIRST_ID), max(ids, default=FIRST_ID))
    organizations: list[UUID] = [pair[0] for pair in pairs]
    projects: list[UUID] = [pair[1] for pair in pairs]
    unique_keys: list[UUID] = list(set(keys))
    return (
        _READ_ENDED.bind(*reservations),
        _READ_CAPS.bind(capped, organizations, projects, capped, unique_keys, *reservations),
    )


def with_period_caps(
    locked: LockedAccounts, ended: Sequence[ResolvedReservation], results: Sequence[Rows]
) -> LockedAccounts:
    """Adds the period caps from the rows of `read_statements` to the accounts, and then counts the
    resolved holds in these caps."""
    ended_rows, caps = results
    states = dict(locked.states)
    for organization_id, scope, subject_id, period, *counts in caps:
        subject: CapSubject = None if scope == "organization" else subject_id
        states[organization_id].period_caps[subject, CapPeriod(period)] = PeriodCap(*counts)
    keys_and_days = {(row[0], row[1]): (row[2], row[3]) for row in ended_rows}
    holds: dict[OrganizationId, list[ResolvedHold]] = {}
    for organization_id, reservation_id, fold in ended:
        spent = fold.settled_picousd + fold.overage_picousd
        key_and_day = keys_and_days[organization_id, reservation_id]
        hold = ResolvedHold(fold.project_id, *key_and_day, fold.hold_picousd, spent)
        holds.setdefault(organization_id, []).append(hold)
    for organization_id, ended_holds in holds.items():
        states[organization_id] = states[organization_id].with_resolved(*ended_holds)
    return replace(locked, states=states)


# Finds the resolved reservations and their keys. The last two parameters are the lowest and the
# highest id. Because of them, PostgreSQL does not open partitions of other months.
_ENDED: LiteralString = """
    FROM reservations r
    JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
    WHERE r.organization_id = ANY (%s) AND r.id = ANY (%s::uuid[])
      AND r.id BETWEEN %s::uuid AND %s::uuid
"""
_READ_ENDED = Statement(
    "tollkeeper_ended_holds",
    "SELECT r.organization_id, r.id, coalesce(k.first_key_id, k.id),"
    " cap_spending_day(r.spending_day, r.held_at)" + _ENDED,
)
# Reads the caps of the organizations, of the projects that were read, of the batch's keys, and of
# the keys of the resolved reservations.
_READ_CAPS = Statement(
    "tollkeeper_period_caps",
    """
    WITH wanted AS (
        SELECT one.id AS organization_id, one.id AS subject_id FROM unnest(%s::uuid[]) AS one (id)
        UNION SELECT * FROM unnest(%s::uuid[], %s::uuid[])
        UNION SELECT organization_id, coalesce(first_key_id, id) FROM project_keys
        WHERE organization_id = ANY (%s) AND id = ANY (%s::uuid[])
        UNION SELECT r.organization_id, coalesce(k.first_key_id, k.id)
    """  # noqa: S608 - built from constants of this file
    + _ENDED
    + """
    )
    SELECT c.organization_id, c.scope, c.subject_id, c.period, c.cap, c.number, c.held, c.settled
    FROM wanted JOIN period_caps c USING (organization_id, subject_id)
    """,
)


def write_statements(states: dict[OrganizationId, AccountState]) -> tuple[BoundStatement, ...]:
    """Returns the statement that writes the period caps of locked accounts, or no statement if the
    accounts have no period caps."""
    rows: list[dict[str, Any]] = [
        {
            "organization_id": organization_id,
            "subject_id": organization_id if subject is None else subject,
            "period": period,
            "number": cap.number,
            "held": str(cap.held_picousd),
            "settled": str(cap.settled_picousd),
        }
        for organization_id, state in states.items()
        for (subject, period), cap in state.period_caps.items()
    ]
    return (_WRITE_CAPS.bind_texts(_encode(rows)),) if rows else ()


# If a new period has begun, `cap_excess` and `settled_dropped` of the past period are set to zero.
_WRITE_CAPS = Statement(
    "tollkeeper_write_period_caps",
    """
    UPDATE period_caps c SET number = v.number, held = v.held, settled = v.settled,
        cap_excess = CASE WHEN c.number = v.number THEN c.cap_excess ELSE 0 END,
        settled_dropped = CASE WHEN c.number = v.number THEN c.settled_dropped ELSE 0 END
    FROM json_to_recordset(%s::json) AS v (organization_id uuid, subject_id uuid, period text,
        number integer, held numeric, settled numeric)
    WHERE c.organization_id = v.organization_id AND c.subject_id = v.subject_id
      AND c.period = v.period
    """,
)
