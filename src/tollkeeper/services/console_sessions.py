"""Stores the console's sessions in the database, so that an ended session stays ended after a
restart and for every console of the database."""

from tollkeeper.domain.people import Person
from tollkeeper.services.clock import Clock
from tollkeeper.storage import console_sessions
from tollkeeper.storage.console_sessions import StoredSession
from tollkeeper.storage.database import Database

# How long a sign-in is valid, and how long without user activity.
SESSION_S = 8 * 3600
IDLE_S = 3600
# Another sign-in ends the user's oldest session.
_SESSIONS_OF_PERSON_MAX = 32
# The minimum interval between two writes of the last use.
_TOUCH_S = 60


class ConsoleSessions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def console_session_begin(
        self, digest: bytes, credential: bytes, person: Person, *, replaces: bytes | None
    ) -> None:
        """Begins a session. Also ends the browser's previous session, sessions of the user with
        another role, the oldest if there are too many, and deletes all expired ones."""
        now = self._clock()
        made = StoredSession(digest, credential, person, now, now, now + SESSION_S)
        async with self._database.transaction() as connection:
            await console_sessions.delete_expired(connection, now, idle_s=IDLE_S)
            if replaces is not None:
                await console_sessions.delete(connection, replaces)
            await console_sessions.insert(connection, made)
            await console_sessions.delete_superseded(connection, made, most=_SESSIONS_OF_PERSON_MAX)

    async def console_session_find(self, digest: bytes, *, used: bool) -> StoredSession | None:
        """Returns the session, or None if it has ended. `used` is True for a user action, and False
        for an automatic request of the page."""
        now = self._clock()
        async with self._database.reading() as connection:
            found = await console_sessions.find(connection, digest)
        if found is None or found.expires_at <= now or found.seen_at + IDLE_S <= now:
            return None
        if used and found.seen_at + _TOUCH_S <= now:
            async with self._database.transaction() as connection:
                await console_sessions.touch(connection, digest, now)
        return found

    async def console_session_list(self, *, limit: int) -> list[StoredSession]:
        """Returns sessions that have not expired, the most recently used first."""
        now = self._clock()
        async with self._database.transaction() as connection:
            await console_sessions.delete_expired(connection, now, idle_s=IDLE_S)
            return await console_sessions.find_all(connection, limit=limit)

    async def console_session_end(self, digest: bytes) -> None:
        async with self._database.transaction() as connection:
            await console_sessions.delete(connection, digest)

    async def console_session_end_all(self, credential: bytes, subject: str) -> None:
        """Ends every session of a user."""
        async with self._database.transaction() as connection:
            await console_sessions.delete_of_person(connection, credential, subject)
