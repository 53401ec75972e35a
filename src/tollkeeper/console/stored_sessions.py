"""Keeps the console's sign-in sessions in the database, so one that has ended stays ended after a
restart and for every console there."""

from tollkeeper.console import session_store as console_sessions
from tollkeeper.console.session_store import StoredSession
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Database
from tollkeeper.tenants.audit.service import record_change
from tollkeeper.tenants.people import Person

# Without user activity, it ends after `IDLE_S`.
SESSION_S = 8 * 3600
IDLE_S = 3600
# With more, the oldest one ends.
_SESSIONS_OF_PERSON_MAX = 32
# The last use is written at most this often.
_LAST_USE_INTERVAL_S = 60


class ConsoleSessions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def console_session_begin(
        self, digest: bytes, credential: bytes, person: Person, *, replaces: bytes | None
    ) -> None:
        """`digest` is the cookie's hash. `credential` says how the user signed in: operator token
        or identity provider. Also ends the browser's previous session (`replaces`), the user's
        sessions with another role or organization, the oldest of too many, and all expired ones."""
        now = self._clock()
        new_session = StoredSession(digest, credential, person, now, now, now + SESSION_S)
        async with self._database.transaction() as connection:
            await console_sessions.delete_expired(connection, now, idle_s=IDLE_S)
            if replaces is not None:
                await console_sessions.delete(connection, replaces)
            await console_sessions.insert(connection, new_session)
            await console_sessions.delete_superseded(
                connection, new_session, most=_SESSIONS_OF_PERSON_MAX
            )

    async def console_session_find(self, digest: bytes, *, used: bool) -> StoredSession | None:
        """None if it has ended. `used`: a user did this, not the page by itself."""
        now = self._clock()
        async with self._database.autocommit() as connection:
            found = await console_sessions.find(connection, digest)
        if found is None or found.expires_at <= now or found.seen_at + IDLE_S <= now:
            return None
        if used and found.seen_at + _LAST_USE_INTERVAL_S <= now:
            async with self._database.transaction() as connection:
                await console_sessions.touch(connection, digest, now)
        return found

    async def console_session_list(self, *, limit: int) -> list[StoredSession]:
        """Most recently used first."""
        now = self._clock()
        async with self._database.transaction() as connection:
            await console_sessions.delete_expired(connection, now, idle_s=IDLE_S)
            return await console_sessions.find_all(connection, limit=limit)

    async def console_session_end(self, digest: bytes) -> None:
        async with self._database.transaction() as connection:
            await console_sessions.delete(connection, digest)

    async def console_session_end_all(self, credential: bytes, subject: str) -> None:
        """Those that began with this `credential`. No subject: the operator token's users."""
        async with self._database.transaction() as connection:
            names = await console_sessions.delete_of_person(connection, credential, subject)
            if names:
                await record_change(
                    *(connection, None, "console_session_end_all"),
                    *("person", subject or names[0]),
                    before={"name": names[0], "sessions": len(names)},
                )
