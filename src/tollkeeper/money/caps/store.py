"""Caps: the hold transaction's statements, and what operators set and see. `caps` has the caps,
`cap_counters` what counts in each period; both change only while the account is locked. A period
without a row has counted nothing, unless a later one has a row: then the clock was set back, and
it's counted anew."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.database.round_trips import BoundStatement, Rows, Statement, id_array
from tollkeeper.money.caps.rule import Cap, CapCounter, CapPeriod, CapSubject, CapUse, period_end
from tollkeeper.money.credit.store import with_balances
from tollkeeper.money.holds.rule import AccountState
from tollkeeper.money.holds.values import LockedAccounts

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class CapOwner:
    """The key if set, otherwise the project if set, otherwise the organization."""

    organization_id: OrganizationId
    project_id: ProjectId | None = None
    # Rotated keys share the first one's caps.
    first_key_id: KeyId | None = None

    @property
    def subject_id(self) -> UUID:
        return self.first_key_id or self.project_id or self.organization_id

    @property
    def scope(self) -> str:
        if self.first_key_id is not None:
            return "key"
        return "organization" if self.project_id is None else "project"


async def find_first_key(
    connection: Connection, organization_id: OrganizationId, key_id: KeyId
) -> tuple[KeyId, ProjectId] | None:
    """The chain of rotated keys that this one belongs to, and its project."""
    cursor = await connection.execute(
        """
        SELECT coalesce(first_key_id, id), project_id FROM project_keys
        WHERE organization_id = %s AND id = %s
        """,
        (organization_id, key_id),
    )
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1])


async def find_keys(
    connection: Connection, organization_id: OrganizationId, first_key_id: KeyId
) -> list[KeyId]:
    cursor = await connection.execute(
        """
        SELECT id FROM project_keys
        WHERE organization_id = %(organization)s AND (id = %(key)s OR first_key_id = %(key)s)
        """,
        {"organization": organization_id, "key": first_key_id},
    )
    return [row[0] for row in await cursor.fetchall()]


# Counts `taken`, which is being folded, in the caps of organization, project and key. No row for
# the period: either it's past, as a later one exists, or the hold was lost and put back without an
# amount.
COUNT_FOLDED: LiteralString = """
    , due AS (
        SELECT p.organization_id, p.subject_id, p.period,
               cap_period_number(p.period, t.day) AS number, sum(t.hold) AS hold,
               sum(t.settled + t.overage) AS spent
        FROM taken t
        JOIN accounts a ON a.organization_id = t.organization_id AND a.is_capped
        JOIN project_keys k ON k.organization_id = t.organization_id AND k.id = t.api_key_id
        JOIN caps p ON p.organization_id = t.organization_id
          AND p.subject_id IN (t.organization_id, t.project_id, coalesce(k.first_key_id, k.id))
        WHERE t.kind = 'resolved'
        GROUP BY 1, 2, 3, 4
    ), counted AS (
        UPDATE cap_counters c SET held = c.held - t.hold, settled = c.settled + t.spent
        FROM due t
        WHERE c.organization_id = t.organization_id AND c.subject_id = t.subject_id
          AND c.period = t.period AND c.number = t.number
    ), begun AS (
        INSERT INTO cap_counters (organization_id, subject_id, period, number, held, settled)
        SELECT organization_id, subject_id, period, number, 0, spent FROM due t
        WHERE NOT EXISTS (SELECT FROM cap_counters l
            WHERE l.organization_id = t.organization_id AND l.subject_id = t.subject_id
              AND l.period = t.period AND l.number >= t.number)
    )
"""


def read_statement(
    organization_ids: Iterable[int], project_ids: Iterable[int], key_ids: Iterable[int]
) -> BoundStatement:
    """Run it once the accounts are locked and resolutions folded; `with_caps` reads the rows."""
    organizations, keys = id_array(organization_ids), id_array(key_ids)
    return _READ_CAPS.bind_texts(
        organizations, organizations, id_array(project_ids), organizations, keys
    )


def with_caps(locked: LockedAccounts, rows: Rows) -> tuple[LockedAccounts, bool]:
    """True if `cap_counts.recount_statement` must run first: the clock was set back to a period
    whose counter is gone."""
    is_behind = False
    now_us = locked.now_us
    for organization_id, scope, subject_id, period, *counter, is_missing, at_us in rows:
        subject: CapSubject = None if scope == "organization" else subject_id
        caps = locked.states[organization_id].caps
        caps[subject, CapPeriod(period)] = CapCounter(*counter)
        is_behind = is_behind or is_missing
        now_us = at_us
    # This transaction's reservations must lie in the periods that were read.
    return replace(locked, now_us=now_us), is_behind


_READ_CAPS = Statement(
    "tollkeeper_read_caps",
    """
    WITH wanted AS (
        SELECT one.id AS organization_id, one.id AS subject_id FROM unnest(%s::uuid[]) AS one (id)
        UNION SELECT * FROM unnest(%s::uuid[], %s::uuid[])
        UNION SELECT organization_id, coalesce(first_key_id, id) FROM project_keys
        WHERE organization_id = ANY (%s) AND id = ANY (%s)
    )
    SELECT c.organization_id, c.scope, c.subject_id, c.period, c.amount, now.number,
        coalesce(t.held, 0), coalesce(t.settled, 0), t.number IS NULL AND EXISTS (
            SELECT FROM cap_counters l
            WHERE l.organization_id = c.organization_id AND l.subject_id = c.subject_id
              AND l.period = c.period AND l.number > now.number),
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    FROM wanted JOIN caps c USING (organization_id, subject_id)
    CROSS JOIN LATERAL (
        SELECT cap_period_number(c.period, utc_day(statement_timestamp())) AS number
    ) now
    LEFT JOIN cap_counters t ON t.organization_id = c.organization_id
      AND t.subject_id = c.subject_id AND t.period = c.period AND t.number = now.number
    """,
)


def write_statements(states: dict[OrganizationId, AccountState]) -> tuple[BoundStatement, ...]:
    """Counts admitted holds in the caps of locked accounts; nothing if none counts any."""
    rows: list[dict[str, Any]] = [
        {
            "organization_id": organization_id,
            "subject_id": organization_id if subject is None else subject,
            "period": period,
            "number": cap.number,
            "added": str(cap.added_picousd),
        }
        for organization_id, state in states.items()
        for (subject, period), cap in state.caps.items()
        if cap.added_picousd
    ]
    return (_COUNT_HOLDS.bind_texts(_encode(rows)),) if rows else ()


# The latest past period stays: around midnight, a clock may be set back a little.
_COUNT_HOLDS = Statement(
    "tollkeeper_count_holds_in_caps",
    """
    WITH v AS (
        SELECT * FROM json_to_recordset(%s::json) AS v (organization_id uuid, subject_id uuid,
            period text, number integer, added numeric)
    ), counted AS (
        INSERT INTO cap_counters AS c (organization_id, subject_id, period, number, held, settled)
        SELECT organization_id, subject_id, period, number, added, 0 FROM v
        ON CONFLICT (organization_id, subject_id, period, number)
        DO UPDATE SET held = c.held + excluded.held
    )
    DELETE FROM cap_counters p USING v
    WHERE p.organization_id = v.organization_id AND p.subject_id = v.subject_id
      AND p.period = v.period AND p.number < (
        SELECT max(l.number) FROM cap_counters l
        WHERE l.organization_id = v.organization_id AND l.subject_id = v.subject_id
          AND l.period = v.period AND l.number < v.number)
    """,
    returns_rows=False,
)


async def write_cap(connection: Connection, owner: CapOwner, cap: Cap) -> None:
    """If it's new, count what it would have counted so far (`cap_counts.recount`)."""
    await connection.execute(
        """
        INSERT INTO caps (organization_id, subject_id, scope, period, amount)
        VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (organization_id, subject_id, period) DO UPDATE SET amount = excluded.amount
        """,
        (
            owner.organization_id,
            owner.subject_id,
            owner.scope,
            cap.period,
            cap.amount_picousd,
        ),
    )
    await connection.execute(
        """
        UPDATE cap_counters SET excess = greatest(0, held + settled - %s)
        WHERE organization_id = %s AND subject_id = %s AND period = %s
        """,
        (cap.amount_picousd, owner.organization_id, owner.subject_id, cap.period),
    )
    await _mark_capped(connection, owner.organization_id)


async def delete_cap(connection: Connection, owner: CapOwner, period: CapPeriod) -> None:
    await connection.execute(
        "DELETE FROM caps WHERE organization_id = %s AND subject_id = %s AND period = %s",
        (owner.organization_id, owner.subject_id, period),
    )
    await _mark_capped(connection, owner.organization_id)


async def _mark_capped(connection: Connection, organization_id: OrganizationId) -> None:
    await connection.execute(
        """
        UPDATE accounts a SET is_capped =
            EXISTS (SELECT FROM caps c WHERE c.organization_id = a.organization_id)
        WHERE organization_id = %s
        """,
        (organization_id,),
    )


async def find_caps(connection: Connection, owner: CapOwner) -> dict[CapPeriod, Cap]:
    cursor = await connection.execute(
        "SELECT amount, period FROM caps WHERE organization_id = %s AND subject_id = %s",
        (owner.organization_id, owner.subject_id),
    )
    found = [Cap(amount, CapPeriod(period)) for amount, period in await cursor.fetchall()]
    return {cap.period: cap for cap in found}


async def find_uses(
    connection: Connection,
    organization_id: OrganizationId,
    subjects: Sequence[UUID] | None = None,
) -> list[CapUse]:
    """First the organization's, then projects', then keys', oldest first. `subjects`: only theirs.
    Of rotated keys, names the newest."""
    subject_ids = None if subjects is None else list(subjects)
    cursor = await connection.execute(
        _FIND_USES, {"organization": organization_id, "subjects": subject_ids}
    )
    return [_cap_use(row) for row in await cursor.fetchall()]


# `cap_balances`: all caps and their present period, unfolded resolutions included. Comes after
# `with_balances`. The server's clock decides on the period, as in admission.
CAP_BALANCES: LiteralString = """
    , unfolded_of_caps AS (
        SELECT c.organization_id, c.subject_id, c.period,
            cap_period_number(c.period, u.day) AS number, sum(u.hold) AS hold,
            sum(u.settled + u.overage) AS spent
        FROM unfolded u
        JOIN project_keys k ON k.organization_id = u.organization_id AND k.id = u.api_key_id
        JOIN caps c ON c.organization_id = u.organization_id
          AND c.subject_id IN (u.organization_id, u.project_id, coalesce(k.first_key_id, k.id))
        WHERE u.kind = 'resolved'
        GROUP BY 1, 2, 3, 4
    ), cap_balances AS (
        SELECT c.organization_id, c.subject_id, c.scope, c.amount AS cap, c.period, now.number,
            CASE WHEN t.number IS NULL THEN 0 ELSE t.held - coalesce(p.hold, 0) END AS held,
            CASE WHEN t.number IS NULL THEN 0 ELSE t.settled + coalesce(p.spent, 0) END AS settled
        FROM caps c
        CROSS JOIN LATERAL (
            SELECT cap_period_number(c.period, utc_day(clock_timestamp())) AS number
        ) now
        LEFT JOIN cap_counters t ON t.organization_id = c.organization_id
          AND t.subject_id = c.subject_id AND t.period = c.period AND t.number = now.number
        LEFT JOIN unfolded_of_caps p ON p.organization_id = c.organization_id
          AND p.subject_id = c.subject_id AND p.period = c.period AND p.number = now.number
    )
"""
# The newest of the rotated keys that share the cap `c`.
NEWEST_KEY: LiteralString = """
    LEFT JOIN LATERAL (
        SELECT k.id, k.project_id, k.created_at FROM project_keys k
        WHERE c.scope = 'key' AND k.organization_id = c.organization_id
          AND (k.id = c.subject_id OR k.first_key_id = c.subject_id)
        ORDER BY k.replaced_by IS NULL DESC, k.created_at DESC LIMIT 1
    ) k ON true
"""
_FIND_USES: LiteralString = with_balances(
    CAP_BALANCES,
    """
    SELECT coalesce(p.id, k.project_id), k.id, CASE c.scope WHEN 'key' THEN c.subject_id END, c.cap,
        c.period, c.number, c.held, c.settled
    FROM cap_balances c
    LEFT JOIN projects p ON c.scope = 'project'
      AND p.organization_id = c.organization_id AND p.id = c.subject_id
    """,
    NEWEST_KEY,
    """
    WHERE c.organization_id = %(organization)s
      AND (%(subjects)s::uuid[] IS NULL OR c.subject_id = ANY (%(subjects)s))
    ORDER BY array_position(ARRAY['organization', 'project', 'key'], c.scope),
        coalesce(p.created_at, k.created_at), c.subject_id,
        array_position(ARRAY['day', 'week', 'month', 'total'], c.period)
    """,
)


def _cap_use(row: tuple[Any, ...]) -> CapUse:
    project_id, key_id, first_key_id, amount, period_text, number, held, settled = row
    period = CapPeriod(period_text)
    return CapUse(
        project_id,
        Cap(amount, period),
        held,
        settled,
        key_id,
        first_key_id,
        period_end(period, number),
    )
