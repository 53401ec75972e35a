"""Payments: what the provider reported, the credit due, and its events."""

from collections.abc import Sequence
from typing import LiteralString

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.money.payments.rule import (
    REFUND_KINDS,
    EventOutcome,
    Payment,
    PaymentEvent,
    PaymentReport,
    RecordedEvent,
    Withdrawal,
)

# How long events without effect on credit are kept.
_IGNORED_DAYS = 30

# Refunds come one by one, as a total, or both. The total may still have a failed one (not
# `withdrawn`), so that's subtracted. Append WHERE and GROUP BY.
DUE: LiteralString = """
    SELECT p.id, p.organization, p.livemode, p.paid, coalesce(least(p.paid, greatest(
            coalesce(sum(w.amount) FILTER (WHERE w.kind = 'refund' AND w.withdrawn), 0),
            p.refunded
                - coalesce(sum(w.amount) FILTER (WHERE w.kind = 'refund' AND NOT w.withdrawn), 0))
        + coalesce(sum(w.amount) FILTER (WHERE w.kind = 'dispute' AND w.withdrawn), 0)
        ), 0) AS withdrawn
    FROM payments p LEFT JOIN payment_withdrawals w ON w.payment_id = p.id
"""


async def add_report(
    connection: Connection,
    report: PaymentReport,
    organization_id: OrganizationId | None,
    *,
    livemode: bool,
) -> bool:
    """Locks the payment until the transaction ends. Order doesn't matter, repeats change nothing.
    False if one is live and the other test."""
    cursor = await connection.execute(
        """
        INSERT INTO payments AS p (id, organization, livemode, paid, refunded)
        VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (id) DO UPDATE SET
            organization = coalesce(p.organization, excluded.organization),
            paid = coalesce(p.paid, excluded.paid),
            refunded = greatest(p.refunded, excluded.refunded)
        WHERE p.livemode = excluded.livemode
        """,
        (
            report.payment_id,
            organization_id,
            livemode,
            report.paid_picousd,
            report.refunded_picousd,
        ),
    )
    if cursor.rowcount == 0:
        return False
    if report.withdrawal is not None:
        await _add_withdrawal(connection, report.payment_id, report.withdrawal)
    return True


async def _add_withdrawal(connection: Connection, payment_id: str, withdrawal: Withdrawal) -> None:
    await connection.execute(
        """
        INSERT INTO payment_withdrawals AS w (id, payment_id, kind, amount, stage, withdrawn)
        VALUES (%s, %s, %s, %s, %s, %s)
        ON CONFLICT (id) DO UPDATE
        SET amount = excluded.amount, stage = excluded.stage, withdrawn = excluded.withdrawn
        WHERE (excluded.stage, excluded.amount) > (w.stage, w.amount)
        """,
        (
            withdrawal.id,
            payment_id,
            withdrawal.kind,
            withdrawal.amount_picousd,
            withdrawal.stage,
            withdrawal.withdrawn,
        ),
    )


async def assign(connection: Connection, payment_id: str, organization_id: OrganizationId) -> None:
    """If it has none yet. Locks the payment until the transaction ends."""
    await connection.execute(
        "UPDATE payments SET organization = coalesce(organization, %s) WHERE id = %s",
        (organization_id, payment_id),
    )


async def unassigned_exists(connection: Connection) -> bool:
    """Succeeded and not wholly refunded. Only reads those without an organization, by
    `payments_of_organization`."""
    cursor = await connection.execute(
        "SELECT EXISTS (SELECT FROM payments WHERE organization IS NULL AND refunded < paid)"
    )
    [[exists]] = await cursor.fetchall()
    return bool(exists)


async def find_due(connection: Connection, payment_id: str) -> Payment | None:
    """With its paid and withdrawn amounts."""
    cursor = await connection.execute(DUE + "WHERE p.id = %s GROUP BY p.id", (payment_id,))
    row = await cursor.fetchone()
    return None if row is None else Payment(*row)


async def find_granted(
    connection: Connection, organization_id: OrganizationId, payment_id: str
) -> tuple[int, int]:
    """And withdrawn again. Neither is negative."""
    cursor = await connection.execute(
        """
        SELECT coalesce(sum(amount) FILTER (WHERE kind <> ALL (%(refunds)s)), 0),
            coalesce(- sum(amount) FILTER (WHERE kind = ANY (%(refunds)s)), 0)
        FROM grants WHERE organization_id = %(organization)s AND payment_id = %(payment)s
        """,
        {"refunds": list(REFUND_KINDS), "organization": organization_id, "payment": payment_id},
    )
    [[granted, withdrawn]] = await cursor.fetchall()
    return granted, withdrawn


async def record_event(
    connection: Connection, event: PaymentEvent, outcome: EventOutcome, detail: str
) -> None:
    await connection.execute(
        """
        INSERT INTO payment_events AS e (id, type, livemode, payment_id, outcome, detail)
        VALUES (%s, %s, %s, %s, %s, %s)
        ON CONFLICT (id) DO UPDATE SET outcome = excluded.outcome, detail = excluded.detail,
            deliveries = e.deliveries + 1, last_received_at = clock_timestamp()
        """,
        (
            event.id,
            event.type,
            event.livemode,
            None if event.report is None else event.report.payment_id,
            outcome,
            detail,
        ),
    )
    if outcome is EventOutcome.IGNORED:
        await connection.execute(
            """
            DELETE FROM payment_events WHERE outcome = 'ignored'
              AND received_at < clock_timestamp() - make_interval(days => %s)
            """,
            (_IGNORED_DAYS,),
        )


async def find_events(
    connection: Connection, *, outcomes: Sequence[EventOutcome], limit: int
) -> list[RecordedEvent]:
    """Newest first; no outcomes means all."""
    assert EventOutcome.BOOKED not in outcomes, "the statement reads stored outcomes"
    cursor = await connection.execute(
        _FIND_EVENTS, {"outcomes": list(outcomes), "limit": limit}, prepare=False
    )
    return [RecordedEvent(EventOutcome(row[0]), *row[1:]) for row in await cursor.fetchall()]


# A later event may have completed a payment, so "waiting" is shown as "booked" once its
# organization and amount are known. Outcomes change in no other way, so the inner condition needs
# no payments.
_FIND_EVENTS: LiteralString = """
    SELECT * FROM (
        SELECT
            CASE WHEN e.outcome NOT IN ('refused', 'ignored') AND p.organization IS NOT NULL
                AND p.paid IS NOT NULL THEN 'booked' ELSE e.outcome END AS outcome,
            e.id, e.type, e.livemode, e.payment_id, p.organization, p.paid, e.detail, e.deliveries,
            extract(epoch FROM e.received_at)::bigint AS received_at
        FROM payment_events e LEFT JOIN payments p ON p.id = e.payment_id
        WHERE %(outcomes)s::text[] = '{}' OR e.outcome = ANY (%(outcomes)s)
        ORDER BY e.received_at DESC, e.id
    ) AS found
    WHERE %(outcomes)s::text[] = '{}' OR outcome = ANY (%(outcomes)s) LIMIT %(limit)s
"""
