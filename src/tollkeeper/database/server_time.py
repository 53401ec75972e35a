"""The database server's time, which all processes share."""

from datetime import datetime

from tollkeeper.database.round_trips import Connection


async def read_time(connection: Connection, *, seconds_ago: float = 0) -> datetime:
    cursor = await connection.execute(
        "SELECT clock_timestamp() - make_interval(secs => %s)", (seconds_ago,)
    )
    [[earlier]] = await cursor.fetchall()
    return earlier  # type: ignore[no-any-return]
