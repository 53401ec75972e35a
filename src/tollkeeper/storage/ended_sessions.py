"""SQL of the console's sessions that were ended by signing out."""

from tollkeeper.storage.database import Connection


async def insert(connection: Connection, session_id: bytes, expires_at: int) -> None:
    """Also deletes those that have expired by themselves. A day more is left to clocks that differ."""
    await connection.execute(
        """
        INSERT INTO ended_console_sessions (id, expires_at) VALUES (%s, to_timestamp(%s))
        ON CONFLICT DO NOTHING
        """,
        (session_id, expires_at),
    )
    await connection.execute(
        "DELETE FROM ended_console_sessions WHERE expires_at < statement_timestamp() - interval '1 day'"
    )


async def has(connection: Connection, session_id: bytes) -> bool:
    cursor = await connection.execute(
        "SELECT FROM ended_console_sessions WHERE id = %s", (session_id,)
    )
    return await cursor.fetchone() is not None
