"""Accounts as operators see them. Before you change one, lock it with `money/holds/statements`, which also
folds all resolved holds into it."""

from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.reports import DAY_S, DayRange
from tollkeeper.core.views import Balance
from tollkeeper.database.database import Connection
from tollkeeper.money.payments.rule import REFUND_KINDS, BookedGrant, GrantKind, GrantTotal

# Current balances: accounts, plus what's in `unfolded`, resolutions and marks. A mark moves its
# hold from `held` to `unsettled`; a resolution reduces `unsettled` if its reservation is marked,
# otherwise `held`. The rows are summed (`pending`) before the join: they're few, even if accounts
# are many.
_PENDING: LiteralString = """
    WITH pending AS NOT MATERIALIZED (
        SELECT u.organization_id, u.project_id,
            sum(CASE WHEN u.kind = 'unsettled' OR m.reservation_id IS NULL THEN u.hold ELSE 0 END)
                AS from_held,
            count(*) FILTER (WHERE u.kind = 'unsettled' OR m.reservation_id IS NULL) AS ended,
            coalesce(sum(u.overage_max) FILTER (WHERE u.kind = 'unsettled' OR m.reservation_id IS NULL),
                0) AS from_overage_in_flight,
            sum(CASE WHEN u.kind = 'unsettled' THEN u.hold
                     WHEN m.reservation_id IS NOT NULL THEN - u.hold ELSE 0 END) AS to_unsettled,
            sum(CASE WHEN u.kind = 'resolved' THEN u.hold ELSE 0 END) AS resolved,
            sum(u.settled + u.overage) AS to_settled,
            sum(u.overage) AS to_overage
        FROM unfolded u LEFT JOIN unsettled_marks m
          ON m.organization_id = u.organization_id AND m.reservation_id = u.reservation_id
"""
_CURRENT: LiteralString = """
        GROUP BY u.organization_id, u.project_id
    ), pending_accounts AS NOT MATERIALIZED (
        SELECT organization_id, sum(from_held) AS from_held, sum(to_unsettled) AS to_unsettled,
            sum(resolved) AS resolved, sum(to_settled) AS to_settled, sum(to_overage) AS to_overage,
            sum(from_overage_in_flight) AS from_overage_in_flight
        FROM pending GROUP BY organization_id
    ), balances AS NOT MATERIALIZED (
        SELECT a.organization_id, a.granted,
            a.available + coalesce(p.resolved - p.to_settled, 0) AS available,
            a.held - coalesce(p.from_held, 0) AS held,
            a.unsettled + coalesce(p.to_unsettled, 0) AS unsettled,
            a.settled + coalesce(p.to_settled, 0) AS settled,
            a.overage + coalesce(p.to_overage, 0) AS overage,
            a.overage_in_flight - coalesce(p.from_overage_in_flight, 0) AS overage_in_flight,
            a.stopped, a.refunded
        FROM accounts a LEFT JOIN pending_accounts p ON p.organization_id = a.organization_id
    ), project_balances AS NOT MATERIALIZED (
        SELECT a.organization_id, a.project_id,
            a.held - coalesce(p.from_held, 0) AS held,
            a.unsettled + coalesce(p.to_unsettled, 0) AS unsettled,
            a.settled + coalesce(p.to_settled, 0) AS settled,
            a.live_holds - coalesce(p.ended, 0) AS live_holds
        FROM project_accounts a LEFT JOIN pending p
          ON p.organization_id = a.organization_id AND p.project_id = a.project_id
    )
"""


def with_balances(*query: LiteralString, unfolded_where: LiteralString = "") -> LiteralString:
    """Puts `balances` and `project_balances` before a query, which may begin with more: `, name AS
    (`. For a range of organizations, repeat it in `unfolded_where`, a WHERE clause for `unfolded
    u`: PostgreSQL doesn't carry a range across a join."""
    return _PENDING + unfolded_where + _CURRENT + "".join(query)


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """A limit of None means the settings' default."""

    requests_per_minute: int | None
    concurrency: int | None
    live_holds: int


async def find_balance(connection: Connection, organization_id: OrganizationId) -> Balance | None:
    cursor = await connection.execute(_FIND_BALANCE, (organization_id,))
    row = await cursor.fetchone()
    return None if row is None else Balance(*row)


_FIND_BALANCE: LiteralString = with_balances(
    """
    SELECT granted, available, held, settled, unsettled FROM balances WHERE organization_id = %s
    """
)


@dataclass(frozen=True, slots=True)
class Overage:
    balance_picousd: int
    overage_picousd: int
    # None means the settings' bound.
    own_bound_picousd: int | None
    stopped: bool


async def find_overage(connection: Connection, organization_id: OrganizationId) -> Overage | None:
    cursor = await connection.execute(_FIND_OVERAGE, (organization_id,))
    row = await cursor.fetchone()
    return None if row is None else Overage(*row)


_FIND_OVERAGE: LiteralString = with_balances(
    """
    SELECT b.granted - b.settled, b.overage, a.overage_bound, a.stopped
    FROM balances b JOIN accounts a USING (organization_id) WHERE b.organization_id = %s
    """
)


async def write_overage_bound(
    connection: Connection, organization_id: OrganizationId, bound_picousd: int | None
) -> None:
    """None means the settings' bound."""
    await connection.execute(
        "UPDATE accounts SET overage_bound = %s WHERE organization_id = %s",
        (bound_picousd, organization_id),
    )


@dataclass(frozen=True, slots=True)
class Totals:
    # With available credit below zero.
    negative: int
    held_picousd: int
    unsettled_picousd: int
    # Because of overage.
    stopped: int


async def read_totals(connection: Connection) -> Totals:
    cursor = await connection.execute(_READ_TOTALS, prepare=False)
    [row] = await cursor.fetchall()
    return Totals(*row)


_READ_TOTALS: LiteralString = with_balances(
    """
    SELECT count(*) FILTER (WHERE available < 0), coalesce(sum(held), 0), coalesce(sum(unsettled), 0),
        count(*) FILTER (WHERE stopped)
    FROM balances
    """
)


async def insert_grant(
    connection: Connection,
    organization_id: OrganizationId,
    grant_id: UUID,
    amount_picousd: int,
    kind: GrantKind,
    note: str,
    payment_id: str | None,
) -> bool:
    """False, and nothing changed, if a grant has this id."""
    # A grant's date is never in a closed month, even if the clock was set back.
    cursor = await connection.execute(
        """
        INSERT INTO grants (organization_id, id, amount, kind, note, payment_id, granted_at)
        VALUES (%s, %s, %s, %s, %s, %s,
            greatest(clock_timestamp(), to_timestamp(ledger_open_day() * 86400.0)))
        ON CONFLICT (organization_id, id) DO NOTHING
        """,
        (organization_id, grant_id, amount_picousd, kind, note, payment_id),
    )
    if not cursor.rowcount:
        return False
    await connection.execute(
        """
        UPDATE accounts SET granted = granted + %(amount)s, available = available + %(amount)s,
            refunded = refunded - %(refund)s
        WHERE organization_id = %(organization)s
        """,
        {
            "amount": amount_picousd,
            "refund": amount_picousd if kind in REFUND_KINDS else 0,
            "organization": organization_id,
        },
    )
    return True


async def find_grants(
    connection: Connection, organization_id: OrganizationId, until: int, limit: int
) -> list[BookedGrant]:
    cursor = await connection.execute(
        """
        SELECT id, kind, amount, note, payment_id, extract(epoch FROM granted_at)::bigint
        FROM grants WHERE organization_id = %s AND granted_at < to_timestamp(%s)
        ORDER BY granted_at DESC, id LIMIT %s
        """,
        (organization_id, until, limit),
    )
    return [BookedGrant(row[0], GrantKind(row[1]), *row[2:]) for row in await cursor.fetchall()]


async def write_limits(
    connection: Connection,
    organization_id: OrganizationId,
    project_id: ProjectId,
    requests_per_minute: int | None,
    concurrency: int | None,
) -> None:
    """None means the settings' default."""
    await connection.execute(
        """
        UPDATE project_accounts SET requests_per_minute = %s, concurrency = %s
        WHERE organization_id = %s AND project_id = %s
        """,
        (requests_per_minute, concurrency, organization_id, project_id),
    )


async def find_limits(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId
) -> OwnLimits:
    cursor = await connection.execute(_FIND_LIMITS, (organization_id, project_id))
    row = await cursor.fetchone()
    assert row is not None, "a project is created together with its account"
    return OwnLimits(*row)


_FIND_LIMITS: LiteralString = with_balances(
    """
    SELECT a.requests_per_minute, a.concurrency, b.live_holds::integer
    FROM project_accounts a JOIN project_balances b USING (organization_id, project_id)
    WHERE a.organization_id = %s AND a.project_id = %s
    """
)


async def find_grant_totals(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> list[GrantTotal]:
    cursor = await connection.execute(
        """
        SELECT kind, count(*), sum(amount) FROM grants
        WHERE organization_id = %s
          AND granted_at >= to_timestamp(%s) AND granted_at < to_timestamp(%s)
        GROUP BY kind ORDER BY kind
        """,
        (organization_id, days.first * DAY_S, days.end * DAY_S),
    )
    return [GrantTotal(GrantKind(row[0]), *row[1:]) for row in await cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class MoneyTotals:
    """Over all organizations."""

    available_picousd: int
    held_picousd: int
    unsettled_picousd: int
    settled_picousd: int
    negative: int


async def find_totals(connection: Connection) -> MoneyTotals:
    cursor = await connection.execute(_FIND_TOTALS, prepare=False)
    [row] = await cursor.fetchall()
    return MoneyTotals(*row)


_FIND_TOTALS: LiteralString = with_balances(
    """
    SELECT coalesce(sum(available), 0), coalesce(sum(held), 0), coalesce(sum(unsettled), 0),
        coalesce(sum(settled), 0), count(*) FILTER (WHERE available < 0)
    FROM balances
    """
)


async def find_all_balances(connection: Connection) -> dict[OrganizationId, Balance]:
    cursor = await connection.execute(_FIND_ALL_BALANCES, prepare=False)
    return {row[0]: Balance(*row[1:]) for row in await cursor.fetchall()}


_FIND_ALL_BALANCES: LiteralString = with_balances(
    "SELECT organization_id, granted, available, held, settled, unsettled FROM balances"
)
