"""SQL of what backends were used for, by model and day. Activity records are summed up there when
they are written (storage/activity), and the sums stay when the records are dropped."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from tollkeeper.storage.database import Connection


@dataclass(frozen=True, slots=True)
class BackendUsage:
    """What the books have of one model of a backend on one UTC day."""

    day: int
    model: str
    requests: int
    unsettled_requests: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost_picousd: int
    reported_cost_picousd: int


async def stream_usage(
    connection: Connection, backend: str, first_day: int, last_day: int
) -> AsyncIterator[BackendUsage]:
    """The days from `first_day` to `last_day`, both included, in order."""
    cursor = await connection.execute(
        """
        SELECT day, model, requests, unsettled_requests, input_tokens, cached_tokens,
            cache_write_tokens, output_tokens, cost, reported_cost
        FROM backend_usage WHERE backend = %s AND day BETWEEN %s AND %s ORDER BY day, model
        """,
        (backend, first_day, last_day),
        prepare=False,
    )
    async for row in cursor:
        yield BackendUsage(*row)


async def find_backends(connection: Connection) -> list[str]:
    """The backends that were ever used."""
    cursor = await connection.execute(
        "SELECT DISTINCT backend FROM backend_usage ORDER BY backend", prepare=False
    )
    return [row[0] for row in await cursor.fetchall()]
