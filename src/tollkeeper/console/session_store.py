"""Sign-ins to the console."""

from dataclasses import dataclass
from typing import Any, LiteralString

from tollkeeper.database.database import Connection
from tollkeeper.tenants.people import Person, Role


@dataclass(frozen=True, slots=True)
class StoredSession:
    # Of the cookie.
    digest: bytes
    # The operator token, or the sign-in settings, with which it began.
    credential: bytes
    person: Person
    began_at: int
    # Last action.
    seen_at: int
    expires_at: int


_SELECT: LiteralString = """
    SELECT digest, credential, subject, name, role, organization,
           extract(epoch FROM began_at)::bigint, extract(epoch FROM seen_at)::bigint,
           extract(epoch FROM expires_at)::bigint
    FROM console_sessions
"""


async def insert(connection: Connection, session: StoredSession) -> None:
    person = session.person
    await connection.execute(
        """
        INSERT INTO console_sessions (digest, credential, subject, name, role, organization,
                                      began_at, seen_at, expires_at)
        VALUES (%s, %s, %s, %s, %s, %s, to_timestamp(%s), to_timestamp(%s), to_timestamp(%s))
        """,
        (
            session.digest,
            session.credential,
            person.subject,
            person.name,
            person.role,
            person.organization_id,
            session.began_at,
            session.seen_at,
            session.expires_at,
        ),
    )


async def find(connection: Connection, digest: bytes) -> StoredSession | None:
    cursor = await connection.execute(f"{_SELECT} WHERE digest = %s", (digest,))
    row = await cursor.fetchone()
    return None if row is None else _session(row)


async def find_all(connection: Connection, *, limit: int) -> list[StoredSession]:
    cursor = await connection.execute(f"{_SELECT} ORDER BY seen_at DESC, digest LIMIT %s", (limit,))
    return [_session(row) for row in await cursor.fetchall()]


async def touch(connection: Connection, digest: bytes, now: int) -> None:
    await connection.execute(
        "UPDATE console_sessions SET seen_at = greatest(seen_at, to_timestamp(%s)) WHERE digest = %s",
        (now, digest),
    )


async def delete(connection: Connection, digest: bytes) -> None:
    await connection.execute("DELETE FROM console_sessions WHERE digest = %s", (digest,))


async def delete_of_person(connection: Connection, credential: bytes, subject: str) -> list[str]:
    """Returns the user's name in each."""
    cursor = await connection.execute(
        "DELETE FROM console_sessions WHERE subject = %s AND credential = %s RETURNING name",
        (subject, credential),
    )
    return [name for (name,) in await cursor.fetchall()]


async def delete_expired(connection: Connection, now: int, *, idle_s: int) -> None:
    await connection.execute(
        """
        DELETE FROM console_sessions
        WHERE expires_at <= to_timestamp(%s) OR seen_at <= to_timestamp(%s)
        """,
        (now, now - idle_s),
    )


async def delete_superseded(connection: Connection, newest: StoredSession, *, most: int) -> None:
    """Those with another role or organization than `newest`, and all but the newest `most`."""
    person = newest.person
    await connection.execute(
        """
        DELETE FROM console_sessions WHERE subject = %(subject)s AND credential = %(credential)s AND (
            (role, organization) IS DISTINCT FROM (%(role)s, %(organization)s::uuid)
            OR digest NOT IN (
                SELECT digest FROM console_sessions
                WHERE subject = %(subject)s AND credential = %(credential)s
                ORDER BY began_at DESC, digest = %(digest)s DESC LIMIT %(most)s
            )
        )
        """,
        {
            "subject": person.subject,
            "credential": newest.credential,
            "role": person.role,
            "organization": person.organization_id,
            "digest": newest.digest,
            "most": most,
        },
    )


def _session(row: tuple[Any, ...]) -> StoredSession:
    digest, credential, subject, name, role, organization_id, *times = row
    person = Person(subject, name, Role(role), organization_id)
    return StoredSession(bytes(digest), bytes(credential), person, *times)
