"""Conditions of accounts, conditions that processes observe, raised alerts, and deliveries to the
webhook."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.money.caps.store import CAP_BALANCES, NEWEST_KEY
from tollkeeper.money.credit.store import with_balances
from tollkeeper.reports.alerts.rule import (
    AlertChange,
    AlertKind,
    AlertState,
    Condition,
    RaisedAlert,
    StandingAlert,
)

# Must differ from all other advisory locks of the gateway.
_ALERTS_LOCK = 7_239_004


@dataclass(frozen=True, slots=True)
class Fill:
    """How much of a cap or an organization's credit is used."""

    kind: AlertKind
    organization_id: OrganizationId
    project_id: ProjectId | None
    amount_picousd: int
    used_picousd: int
    # Only for a key's cap.
    key_id: KeyId | None = None
    # Only for a cap.
    period: str | None = None

    @property
    def percent(self) -> int:
        return 100 if self.amount_picousd == 0 else self.used_picousd * 100 // self.amount_picousd


@dataclass(frozen=True, slots=True)
class Delivery:
    id: int
    body: str
    attempts: int


async def try_lock(connection: Connection) -> bool:
    """Until the transaction ends. False if another process has it."""
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_ALERTS_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    return bool(is_locked)


async def find_fills(connection: Connection, percent: int) -> list[Fill]:
    cursor = await connection.execute(_FIND_FILLS, {"percent": percent}, prepare=False)
    return [Fill(AlertKind(row[0]), *row[1:]) for row in await cursor.fetchall()]


_FIND_FILLS: LiteralString = with_balances(
    CAP_BALANCES,
    """
    , filled AS (
        SELECT 'cap' AS kind, c.organization_id,
            coalesce(k.project_id, CASE c.scope WHEN 'project' THEN c.subject_id END) AS project_id,
            c.cap AS amount, c.held + c.settled AS used, k.id AS key_id, c.period
        FROM cap_balances c
    """,
    NEWEST_KEY,
    """
        UNION ALL
        SELECT 'credit', organization_id, NULL, granted, granted - available, NULL, NULL
        FROM balances WHERE granted > 0
    )
    SELECT kind, organization_id, project_id, amount, used, key_id, period FROM filled
    WHERE used * 100 >= amount * %(percent)s
    """,
)


async def find_negative(connection: Connection) -> list[tuple[OrganizationId, int]]:
    """With their available credit."""
    cursor = await connection.execute(_FIND_NEGATIVE, prepare=False)
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_FIND_NEGATIVE: LiteralString = with_balances(
    "SELECT organization_id, available FROM balances WHERE available < 0"
)


async def find_stopped(connection: Connection) -> list[tuple[OrganizationId, int]]:
    """Because of overage, with their balances."""
    cursor = await connection.execute(_FIND_STOPPED, prepare=False)
    return [(row[0], row[1]) for row in await cursor.fetchall()]


_FIND_STOPPED: LiteralString = with_balances(
    """
    SELECT b.organization_id, b.granted - b.settled
    FROM balances b JOIN accounts a USING (organization_id) WHERE a.stopped
    """
)


async def find_raised(connection: Connection) -> dict[str, RaisedAlert]:
    cursor = await connection.execute("SELECT key, kind, level, subject, detail FROM alerts")
    return {
        key: RaisedAlert(key, AlertKind(kind), level, subject, detail)
        for key, kind, level, subject, detail in await cursor.fetchall()
    }


async def find_standing(connection: Connection) -> list[StandingAlert]:
    cursor = await connection.execute(
        """
        SELECT kind, level, subject, detail, extract(epoch FROM raised_at)::bigint
        FROM alerts ORDER BY raised_at, key
        """
    )
    return [StandingAlert(AlertKind(row[0]), *row[1:]) for row in await cursor.fetchall()]


async def write_change(connection: Connection, change: AlertChange) -> None:
    alert = change.alert
    if change.state is AlertState.CLEARED:
        await connection.execute("DELETE FROM alerts WHERE key = %s", (alert.key,))
        return
    await connection.execute(
        """
        INSERT INTO alerts (key, kind, level, subject, detail) VALUES (%s, %s, %s, %s::jsonb, %s)
        ON CONFLICT (key) DO UPDATE SET level = excluded.level, detail = excluded.detail
        """,
        (alert.key, alert.kind, alert.level, _json(alert.subject), alert.detail),
    )


async def observe(connection: Connection, condition: Condition, valid_s: float) -> None:
    """Valid for `valid_s` seconds."""
    await connection.execute(
        """
        INSERT INTO alert_observations (key, kind, subject, detail, expires_at)
        VALUES (%s, %s, %s::jsonb, %s, clock_timestamp() + make_interval(secs => %s))
        ON CONFLICT (key) DO UPDATE SET detail = excluded.detail, expires_at = excluded.expires_at
        """,
        (condition.key, condition.kind, _json(condition.subject), condition.detail, valid_s),
    )


async def find_observed(connection: Connection, valid_s_max: float) -> list[Condition]:
    """Deletes expired ones, and those valid for longer than `valid_s_max`: they were written before
    the clock was set back."""
    await connection.execute(
        """
        DELETE FROM alert_observations WHERE expires_at < clock_timestamp()
            OR expires_at > clock_timestamp() + make_interval(secs => %s)
        """,
        (valid_s_max,),
    )
    cursor = await connection.execute("SELECT key, kind, subject, detail FROM alert_observations")
    return [
        Condition(key, AlertKind(kind), subject, detail)
        for key, kind, subject, detail in await cursor.fetchall()
    ]


async def queue_deliveries(connection: Connection, bodies: Sequence[str], most: int) -> int:
    """Beyond `most`, deletes the oldest. Returns how many."""
    await connection.execute(
        "INSERT INTO alert_deliveries (body) SELECT unnest(%s::text[])", (list(bodies),)
    )
    cursor = await connection.execute(
        """
        DELETE FROM alert_deliveries WHERE id <= (
            SELECT id FROM alert_deliveries ORDER BY id DESC OFFSET %s LIMIT 1)
        """,
        (most,),
    )
    return cursor.rowcount


async def claim_deliveries(
    connection: Connection, *, limit: int, claimed_s: float, pause_s_max: float
) -> list[Delivery]:
    """Due ones, reserved for this process for `claimed_s`, with one more attempt. A time more than
    `pause_s_max` ahead is due too: it's from before the clock was set back."""
    cursor = await connection.execute(
        """
        UPDATE alert_deliveries SET attempts = attempts + 1,
            due_at = clock_timestamp() + make_interval(secs => %s)
        WHERE id IN (SELECT id FROM alert_deliveries WHERE due_at <= clock_timestamp()
                        OR due_at > clock_timestamp() + make_interval(secs => %s)
                     ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
        RETURNING id, body, attempts
        """,
        (claimed_s, pause_s_max, limit),
    )
    return sorted((Delivery(*row) for row in await cursor.fetchall()), key=lambda one: one.id)


async def forget_delivery(connection: Connection, delivery_id: int) -> None:
    await connection.execute("DELETE FROM alert_deliveries WHERE id = %s", (delivery_id,))


async def delay_delivery(connection: Connection, delivery_id: int, seconds: float) -> None:
    await connection.execute(
        """
        UPDATE alert_deliveries SET due_at = clock_timestamp() + make_interval(secs => %s)
        WHERE id = %s
        """,
        (seconds, delivery_id),
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
