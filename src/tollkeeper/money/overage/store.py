"""Calls that cost more than their holds: per model, backend and day, the largest excess in relation
to the hold."""

from collections.abc import Iterable
from typing import LiteralString

import msgspec

from tollkeeper.database.database import Connection
from tollkeeper.database.round_trips import BoundStatement, Statement
from tollkeeper.money.overage.rule import EXCESS_LIFETIME_DAYS, Excess, largest

# Per process.
_ROWS_MAX = 10_000
_encode = msgspec.json.Encoder().encode

# Equal cases replace each other too, as the newer one halves later. Compares products: a quotient
# would be rounded.
_NOTE = Statement(
    "tollkeeper_note_excesses",
    """
    INSERT INTO observed_excesses AS o (model, backend, day, hold, cost, noted_at)
    SELECT model, backend, (now AT TIME ZONE 'UTC')::date, hold_picousd, cost_picousd, now
    FROM json_to_recordset(%s::json) AS g
        (model text, backend text, hold_picousd numeric, cost_picousd numeric),
        (SELECT clock_timestamp() AS now) AS clock
    -- In a fixed order, so that two processes do not deadlock.
    ORDER BY model, backend
    ON CONFLICT (model, backend, day) DO UPDATE
        SET hold = excluded.hold, cost = excluded.cost, noted_at = excluded.noted_at
        WHERE (excluded.cost - excluded.hold) * greatest(o.hold, 1)
            >= (o.cost - o.hold) * greatest(excluded.hold, 1)
    """,
    returns_rows=False,
)


def note_statement(cases: Iterable[Excess]) -> BoundStatement:
    return _NOTE.bind_texts(_encode(list(largest(cases).values())))


async def find_recent(connection: Connection, now: int) -> list[Excess]:
    """Newest first. Times are by the clock that says `now`: the gateway's and the database's may
    differ."""
    cursor = await connection.execute(
        _FIND, {"days": EXCESS_LIFETIME_DAYS, "limit": _ROWS_MAX}, prepare=False
    )
    return [
        Excess(model, backend, hold, cost, now - age_s)
        for model, backend, hold, cost, age_s in await cursor.fetchall()
    ]


_FIND: LiteralString = """
    SELECT model, backend, hold, cost,
        greatest(extract(epoch FROM clock_timestamp() - noted_at), 0)::bigint
    FROM observed_excesses WHERE noted_at > clock_timestamp() - make_interval(days => %(days)s)
    ORDER BY noted_at DESC LIMIT %(limit)s
"""


async def find_latest(connection: Connection, within_s: float) -> list[Excess]:
    """Each model's and backend's latest within `within_s`, by name. Deletes those that no longer
    count."""
    await connection.execute(
        """
        DELETE FROM observed_excesses
        WHERE noted_at <= clock_timestamp() - make_interval(days => %s)
        """,
        (EXCESS_LIFETIME_DAYS,),
    )
    cursor = await connection.execute(_FIND_LATEST, {"within": within_s})
    return [Excess(*row) for row in await cursor.fetchall()]


_FIND_LATEST: LiteralString = """
    SELECT DISTINCT ON (model, backend) model, backend, hold, cost,
        extract(epoch FROM noted_at)::bigint
    FROM observed_excesses WHERE noted_at > clock_timestamp() - make_interval(secs => %(within)s)
    ORDER BY model, backend, noted_at DESC
"""


async def forget(connection: Connection, model: str, backend: str | None) -> int:
    """No backend means all. Returns the number of rows."""
    cursor = await connection.execute(
        "DELETE FROM observed_excesses WHERE model = %s AND backend = coalesce(%s, backend)",
        (model, backend),
    )
    return cursor.rowcount
