"""Contains the SQL with which operators set, remove and show caps (the highest amounts that an
organization, a project or a key may spend).

A monthly or total cap of an organization or a project is a column of its account, and uses the
account's counters. All other caps are period caps: rows in `period_caps` with their own counters.
A caller must lock the account and fold (add) all resolved holds into the account's counters before
the caller changes a cap. A spending day is the day on which caps count a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.caps import DAY_S, Cap, CapPeriod, PeriodCap, period_end, period_number
from tollkeeper.domain.views import CapUse
from tollkeeper.storage.accounts import with_balances
from tollkeeper.storage.database import Connection


@dataclass(frozen=True, slots=True)
class CapOwner:
    """Identifies the owner of a cap: the key if set, otherwise the project if set, otherwise the
    organization."""

    organization_id: OrganizationId
    project_id: ProjectId | None = None
    # The first key in a chain of rotated keys, which share their caps.
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
    """Returns the first key in the chain of rotated keys to which this key belongs, and the project
    of these keys."""
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
    """Returns all keys in the chain of rotated keys that begins with this key."""
    cursor = await connection.execute(
        """
        SELECT id FROM project_keys
        WHERE organization_id = %(organization)s AND (id = %(key)s OR first_key_id = %(key)s)
        """,
        {"organization": organization_id, "key": first_key_id},
    )
    return [row[0] for row in await cursor.fetchall()]


async def find_latest_day(
    connection: Connection, organization_id: OrganizationId, today: int
) -> int:
    """Returns the latest spending day of the organization's reservations, or `today` if that is
    later. The result is after today only if the clock was set back."""
    cursor = await connection.execute(
        """
        SELECT greatest(%(today)s::integer, (
            SELECT max(cap_spending_day(spending_day, held_at)) FROM reservations
            WHERE organization_id = %(organization)s
              AND (held_at >= to_timestamp(%(tomorrow)s) OR spending_day > %(today)s)))
        """,
        {"organization": organization_id, "today": today, "tomorrow": (today + 1) * DAY_S},
        prepare=False,
    )
    [[latest_day]] = await cursor.fetchall()
    return int(latest_day)


async def write_account_cap(connection: Connection, owner: CapOwner, cap: Cap | None) -> None:
    """Sets the monthly or total cap of the organization or the project; None removes the cap.
    `cap_excess` stores the amount by which the counters already exceed the new cap, so that the
    ledger's verification does not report this excess."""
    values = {
        "amount": None if cap is None else cap.amount_picousd,
        "period": None if cap is None else cap.period,
        "organization": owner.organization_id,
        "project": owner.project_id,
    }
    statement = _WRITE_ACCOUNT_CAP if owner.project_id is None else _WRITE_PROJECT_CAP
    await connection.execute(statement, values)


_CAP_OF_ACCOUNT: LiteralString = """
    SET cap = %(amount)s::numeric, cap_period = %(period)s::text, cap_excess = greatest(0,
        CASE %(period)s::text WHEN 'month' THEN month_held + month_settled
            ELSE held + unsettled + settled END - %(amount)s::numeric)
    WHERE organization_id = %(organization)s
"""
_WRITE_ACCOUNT_CAP: LiteralString = "UPDATE accounts" + _CAP_OF_ACCOUNT
_WRITE_PROJECT_CAP: LiteralString = (
    "UPDATE project_accounts" + _CAP_OF_ACCOUNT + "AND project_id = %(project)s"
)


async def write_cap(connection: Connection, owner: CapOwner, cap: Cap, day: int) -> None:
    """Creates a period cap with counters of zero, or changes the amount of an existing cap. `day` is
    the spending day of the organization's next calls, and is stored in the account."""
    await connection.execute(
        """
        INSERT INTO period_caps AS c (organization_id, subject_id, scope, period, cap, number, held,
            settled)
        VALUES (%s, %s, %s, %s, %s, %s, 0, 0)
        ON CONFLICT (organization_id, subject_id, period) DO UPDATE SET cap = excluded.cap,
            cap_excess = greatest(0, c.held + c.settled - excluded.cap)
        """,
        (
            owner.organization_id,
            owner.subject_id,
            owner.scope,
            cap.period,
            cap.amount_picousd,
            period_number(cap.period, day),
        ),
    )
    await connection.execute(
        "UPDATE accounts SET spending_day = %s WHERE organization_id = %s",
        (day, owner.organization_id),
    )


async def delete_cap(connection: Connection, owner: CapOwner, period: CapPeriod) -> None:
    """Deletes a period cap. If it was the last one, also clears the account's spending day."""
    await connection.execute(
        "DELETE FROM period_caps WHERE organization_id = %s AND subject_id = %s AND period = %s",
        (owner.organization_id, owner.subject_id, period),
    )
    await connection.execute(
        """
        UPDATE accounts a SET spending_day = NULL WHERE organization_id = %s
          AND NOT EXISTS (SELECT FROM period_caps c WHERE c.organization_id = a.organization_id)
        """,
        (owner.organization_id,),
    )


async def find_uses(
    connection: Connection,
    organization_id: OrganizationId,
    subjects: Sequence[UUID] | None = None,
) -> list[CapUse]:
    """Returns the caps with their used amounts: first the caps of the organization, then of its
    projects, then of keys. Projects and keys are in the order of their creation. With `subjects`,
    returns only the caps of these owners. For a chain of rotated keys, names the newest key."""
    subject_ids = None if subjects is None else list(subjects)
    cursor = await connection.execute(
        _FIND_USES, {"organization": organization_id, "subjects": subject_ids}
    )
    return [_cap_use(row) for row in await cursor.fetchall()]


# The columns of `cap_balances` for a cap that uses the counters of an account.
_OF_ACCOUNT: LiteralString = """
    true AS of_account, cap, cap_period AS period,
    CASE cap_period WHEN 'month' THEN month ELSE 0 END AS number,
    CASE cap_period WHEN 'month' THEN month_held ELSE held + unsettled END AS held,
    CASE cap_period WHEN 'month' THEN month_settled ELSE settled END AS settled,
    cap_spending_day(NULL, clock_timestamp()) AS day
"""
# Defines `cap_balances`: all caps with their held and settled amounts, including resolutions that
# are not yet folded into the counters. Must stand after the definitions from `with_balances`. The
# database server's clock determines the current day, as in admission.
CAP_BALANCES: LiteralString = (
    """
    , unfolded_holds AS (
        SELECT u.organization_id, u.project_id, coalesce(k.first_key_id, k.id) AS first_key_id,
            cap_spending_day(r.spending_day, r.held_at) AS day, sum(u.hold) AS hold,
            sum(u.settled + u.overage) AS spent
        FROM unfolded u
        JOIN reservations r ON r.organization_id = u.organization_id AND r.id = u.reservation_id
        JOIN project_keys k ON k.organization_id = r.organization_id AND k.id = r.api_key_id
        WHERE u.kind = 'resolved'
          AND u.organization_id IN (SELECT organization_id FROM period_caps)
        GROUP BY 1, 2, 3, 4
    ), cap_balances AS (
        SELECT organization_id, organization_id AS subject_id, 'organization' AS scope,
    """  # noqa: S608 - built from constants of this file
    + _OF_ACCOUNT
    + """
        FROM balances WHERE cap IS NOT NULL
        UNION ALL SELECT organization_id, project_id, 'project',
    """
    + _OF_ACCOUNT
    + """
        FROM project_balances WHERE cap IS NOT NULL
        UNION ALL
        SELECT c.organization_id, c.subject_id, c.scope, false, c.cap, c.period, c.number,
            c.held - coalesce(sum(p.hold), 0), c.settled + coalesce(sum(p.spent), 0),
            greatest(a.spending_day, cap_spending_day(NULL, clock_timestamp()))
        FROM period_caps c JOIN accounts a USING (organization_id)
        LEFT JOIN unfolded_holds p ON p.organization_id = c.organization_id
          AND c.subject_id IN (p.organization_id, p.project_id, p.first_key_id)
          AND cap_period_number(c.period, p.day) = c.number
        GROUP BY c.organization_id, c.subject_id, c.period, a.spending_day
    )
    """
)
# Joins the newest of the rotated keys that share the cap `c`.
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
        c.period, c.number, c.held, c.settled, c.day
    FROM cap_balances c
    LEFT JOIN projects p ON c.scope = 'project'
      AND p.organization_id = c.organization_id AND p.id = c.subject_id
    """,
    NEWEST_KEY,
    """
    WHERE c.organization_id = %(organization)s
      AND (%(subjects)s::uuid[] IS NULL OR c.subject_id = ANY (%(subjects)s))
    ORDER BY array_position(ARRAY['organization', 'project', 'key'], c.scope),
        coalesce(p.created_at, k.created_at), c.subject_id, NOT c.of_account,
        array_position(ARRAY['day', 'week', 'month'], c.period)
    """,
)


def _cap_use(row: tuple[Any, ...]) -> CapUse:
    project_id, key_id, first_key_id, amount, period_text, number, held, settled, day = row
    period = CapPeriod(period_text)
    current = PeriodCap(amount, number, held, settled).in_period(period_number(period, day))
    return CapUse(
        project_id,
        Cap(amount, period),
        current.held_picousd,
        current.settled_picousd,
        key_id,
        first_key_id,
        period_end(period, current.number),
    )
