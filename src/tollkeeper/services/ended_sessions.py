"""The console's sessions that were ended by signing out. They stay ended after a restart, and for
every console of the database."""

from tollkeeper.storage import ended_sessions
from tollkeeper.storage.database import Database


class EndedSessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session_id: bytes, expires_at: int) -> None:
        async with self._database.transaction() as connection:
            await ended_sessions.insert(connection, session_id, expires_at)

    async def has(self, session_id: bytes) -> bool:
        async with self._database.reading() as connection:
            return await ended_sessions.has(connection, session_id)
