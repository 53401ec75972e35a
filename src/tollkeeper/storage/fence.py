"""Fences off old PostgreSQL servers: the gateway writes only to the newest server that it knows.

After a failover, the old primary may come back and accept writes in parallel with the promoted
server. PostgreSQL increments its timeline number when a standby is promoted, or when a backup is
restored to a point in time. So the server with the lower timeline is the old one. Two copies of one
server can be promoted to the same number. So the first process that uses a server on a timeline
writes a random token for this timeline (its history), and a server with the same timeline and
another history is refused. A copy that was loaded from a dump is another database, even on the same
server. The gateway learns about the newest server from four sources: its own connections, a file
that earlier processes on this machine wrote, the other hosts in the database address, and the row
of the table `server_fence` on each server. Each process writes the rank (epoch and timeline) of the
newest server that the process knows into this row, on every server that accepts writes, even on an
old server. So processes that can connect only to the old server reject that server too.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, Self
from weakref import WeakSet

import psycopg

from tollkeeper.domain.errors import StateConflict, Unavailable
from tollkeeper.runtime.late_log import LateLogger
from tollkeeper.storage.reachability import Reachability, unreachable_detail
from tollkeeper.storage.sessions import session_conninfo, session_conventions, single_hosts
from tollkeeper.storage.watched_connection import WatchedConnection

# The maximum time that a survey (asking all hosts which server is the newest) waits for one host.
_ANSWER_WITHIN_S = 1.0
_log = LateLogger("tollkeeper.fence")

# The timeline is NULL on a standby. The query reads the timeline from the name of the current WAL
# file, which begins with the timeline in hex, because `pg_control_checkpoint` still shows the old
# timeline for a short time after a promotion.
_IDENTIFY: LiteralString = """
    SELECT c.system_identifier, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
        CASE WHEN NOT pg_is_in_recovery() THEN
            ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,
        current_setting('transaction_read_only') = 'off', pg_postmaster_start_time(),
        EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('server_fence') AND attname = 'history')
    FROM pg_control_system() c
"""
_READ_FENCE: LiteralString = """
    SELECT epoch, CASE WHEN history_timeline = %s THEN history::text END,
        seen_epoch, seen_timeline, seen_system_identifier, seen_database, seen_history::text
    FROM server_fence
"""
_BEGIN_HISTORY: LiteralString = """
    UPDATE server_fence SET history = gen_random_uuid(), history_timeline = %(timeline)s
    WHERE history_timeline IS DISTINCT FROM %(timeline)s
"""
_MARK: LiteralString = """
    UPDATE server_fence SET seen_epoch = %(epoch)s, seen_timeline = %(timeline)s,
        seen_system_identifier = %(system_identifier)s, seen_database = %(database)s,
        seen_history = %(history)s
    WHERE seen_epoch IS NULL OR (seen_epoch, seen_timeline) < (%(epoch)s, %(timeline)s)
"""
_ACCEPT: LiteralString = """
    UPDATE server_fence SET epoch = %(epoch)s, seen_epoch = %(epoch)s,
        seen_timeline = %(timeline)s, seen_system_identifier = %(system_identifier)s,
        seen_database = %(database)s, seen_history = %(history)s
"""
# Commits do not wait for a synchronous standby, because the standby of an old primary may no longer
# follow this primary.
_COMMIT_WITHOUT_STANDBY: LiteralString = "SET LOCAL synchronous_commit TO local"


class ServerFenced(psycopg.OperationalError):
    """Raised if no server that accepts writes may be used, because all of them are old, or because
    several accept writes and none of these is known to be the newest."""


class Rank(NamedTuple):
    """Contains a server's rank, which tells how new the server is. The timelines of two servers are
    compared only if their epochs are equal. An operator increments the epoch with `tollkeeper database
    accept`."""

    epoch: int
    timeline: int
    system_identifier: int
    # The number (oid) of the database on the server. A dump that was loaded beside the original has
    # another one. None only in a file of an older version.
    database: int | None = None
    # The token of the timeline; None if no process has written it yet, or in a file of an older
    # version.
    history: str | None = None

    def is_newer_than(self, other: "Rank | None") -> bool:
        if other is None or self.epoch != other.epoch:
            return other is None or self.epoch > other.epoch
        return self.is_same_database(other) and self.timeline > other.timeline

    def is_fenced_by(self, other: "Rank | None") -> bool:
        """Tells whether a server with this rank is fenced off if `other` is the newest. A different
        database or history with the same epoch cannot be compared, so it is fenced off too."""
        return not self.is_newer_than(other) and not self.is_same(other)

    def is_same(self, other: "Rank | None") -> bool:
        return (
            other is not None
            and (self.epoch, self.timeline) == (other.epoch, other.timeline)
            and self.is_same_database(other)
            and _are_equal_if_known(self.history, other.history)
        )

    def is_same_database(self, other: "Rank") -> bool:
        return self.system_identifier == other.system_identifier and _are_equal_if_known(
            self.database, other.database
        )

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch}, timeline {self.timeline}, history {(self.history or 'new')[:8]}, "
            f"system identifier {self.system_identifier}, database {self.database}"
        )


def _are_equal_if_known(one: object, other: object) -> bool:
    return one == other or one is None or other is None


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    conninfo: str
    # None for a standby, or for a PostgreSQL-compatible service without the functions in
    # `_IDENTIFY`.
    rank: Rank | None
    # The rank of the newest server that any process has recorded in this server's `server_fence`
    # row.
    seen: Rank | None
    accepts_writes: bool
    # Tells whether the table `server_fence` exists. A new database has no tables.
    has_fence: bool = False
    started_at: datetime | None = None


class Fence:
    """Tracks the newest server that this process knows, and checks each new connection. Safe to
    share between tasks of one event loop."""

    def __init__(
        self, conninfo: str, seen_file: Path | None, *, before_migrating: bool = False
    ) -> None:
        """`seen_file` is the file in which earlier processes on this machine recorded the newest
        server. With `before_migrating`, no server without the table `server_fence` is refused,
        because `accept` needs this table."""
        self._conninfo = conninfo
        self._seen_file = seen_file
        self._before_migrating = before_migrating
        self._newest: Rank | None = None
        # False if the newest server is known only from a file that was written for other database
        # hosts.
        self._is_of_these_hosts = False
        # The content of `seen_file` as it was last read or written; None if there is no such file.
        self._saved: dict[str, Any] | None = None
        self._address: str | None = None
        self._surveying: asyncio.Task[str] | None = None
        self._connections: WeakSet[FencedConnection] = WeakSet()
        # From the last survey: one sentence about each old server that accepts writes.
        self.old_servers: tuple[str, ...] = ()

    async def address(self) -> str:
        """Returns the address that the last survey found, or runs a survey."""
        return self._address or await self.survey()

    def forget_address(self) -> None:
        """Makes the next connection survey all servers again."""
        self._address = None

    async def survey(self) -> str:
        """Asks every host, and returns the newest server's address, or the address of all hosts if no
        server accepts writes. Raises ServerFenced if no server that accepts writes may be used. Only
        one survey runs at a time; concurrent callers share its result."""
        if self._surveying is None or self._surveying.done():
            self._surveying = asyncio.create_task(self._survey())
        return await asyncio.shield(self._surveying)

    async def close(self) -> None:
        if self._surveying is not None:
            self._surveying.cancel()
            await asyncio.gather(self._surveying, return_exceptions=True)

    async def admit(self, connection: "FencedConnection") -> None:
        """Checks the server of a new connection. Raises ServerFenced if the server is old."""
        server = await _identify(connection, f"{connection.info.host}:{connection.info.port}", "")
        self._note(server.rank)
        self._note(server.seen)
        self._save()
        self._refuse_old(server)
        connection.rank = server.rank
        self._connections.add(connection)

    async def accept(self) -> Rank:
        """Gives the server that accepts writes a higher epoch than all other servers, and returns
        its new rank. Raises StateConflict unless exactly one server accepts writes and it has the
        table `server_fence`."""
        self._read_saved()
        writable = [server for server in await self._ask_all() if server.accepts_writes]
        # Two entries with the same start time are one server that has two host names.
        if len({server.started_at for server in writable}) != 1:
            names = ", ".join(server.name for server in writable) or "none"
            raise StateConflict(
                f"Exactly one server must accept writes. These servers do: {names}."
            )
        (server, *_) = writable
        assert server.rank is not None
        if not server.has_fence:
            raise StateConflict(
                f"The schema of {server.name} is missing or too old: run `tollkeeper migrate` first."
            )
        known = (server.rank, server.seen, self._newest)
        epoch = 1 + max(rank.epoch for rank in known if rank is not None)
        accepted = server.rank._replace(epoch=epoch)
        await _write(server, _ACCEPT, accepted)
        self._note(accepted)
        self._save()
        return accepted

    async def _survey(self) -> str:
        try:
            self._address, self.old_servers = await self._compare_servers()
        except ServerFenced as exc:
            self._address, self.old_servers = None, (str(exc),)
            raise
        return self._address

    async def _compare_servers(self) -> tuple[str, tuple[str, ...]]:
        """Returns the address for new connections, and one sentence about each old server that accepts
        writes."""
        self._read_saved()
        servers = await self._ask_all()
        writable = [server for server in servers if server.accepts_writes]
        newest = [server for server in writable if not _is_outranked(server, writable)]
        if len({server.started_at for server in newest}) > 1:
            self._close_connections(list(self._connections))
            raise ServerFenced(
                f"{' and '.join(server.name for server in newest)} accept writes, and none of them "
                f"is newer ({'; '.join(str(server.rank) for server in newest)}): stop all but one"
            )
        # The newest servers come first, because `_note` keeps the first of two ranks that cannot be
        # compared.
        for server in (*newest, *servers):
            self._note(server.rank)
            self._note(server.seen)
        self._save()
        await asyncio.gather(*(self._mark(server) for server in writable))
        for server in newest:
            self._refuse_old(server)
        # If no server accepts writes, return all hosts: the driver's attempt to connect then fails
        # with an explanation.
        address = newest[0].conninfo if newest else session_conninfo(self._conninfo)
        return address, tuple(self._why_old(server) for server in writable if server not in newest)

    async def _ask_all(self) -> list[Server]:
        hosts = single_hosts(session_conninfo(self._conninfo))
        # With several hosts, ask every host, whether it accepts writes or not. A single host name
        # may resolve to several servers, so the driver chooses one of them by the attributes in the
        # address.
        attributes = {"target_session_attrs": "any"} if len(hosts) > 1 else {}
        answers = await asyncio.gather(*(self._ask(*host, **attributes) for host in hosts))
        return [server for server in answers if server is not None]

    async def _ask(self, name: str, conninfo: str, **attributes: Any) -> Server | None:
        """Connects to the address, with `attributes` instead of the attributes in the address. Returns
        a description of the server, or None if no server answers in time."""
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                connection = await WatchedConnection.connect(
                    conninfo, autocommit=True, **attributes
                )
            async with connection:
                server = await _identify(connection, name, conninfo)
        except (psycopg.Error, TimeoutError):
            return None
        if self._newest is not None:
            # Record the rank at once, so that connections to an old server are closed without
            # waiting for hosts that do not answer.
            self._note(server.rank)
        return server

    def _refuse_old(self, server: Server) -> None:
        rank = server.rank
        if rank is None or not server.accepts_writes:
            return
        if self._before_migrating and not server.has_fence:
            return
        if rank.is_fenced_by(self._newest) or rank.is_fenced_by(server.seen):
            raise ServerFenced(self._why_old(server))

    def _why_old(self, server: Server) -> str:
        # A server can be refused because of a rank that only other processes have written to it.
        assert server.rank is not None
        newest = self._newest if server.rank.is_fenced_by(self._newest) else server.seen
        return (
            f"{server.name} accepts writes and is not the newest server (it has {server.rank}; "
            f"the newest has {newest}): stop it, or run `tollkeeper database accept` to use it"
        )

    def _note(self, rank: Rank | None, *, is_of_these_hosts: bool = True) -> None:
        """Records a server's rank. If it is the newest known rank, closes connections to older
        servers."""
        if rank is None:
            return
        if rank.is_same(self._newest):
            self._is_of_these_hosts |= is_of_these_hosts
            if rank.history is not None:
                self._newest = rank
        elif rank.is_newer_than(self._newest):
            self._newest, self._is_of_these_hosts = rank, is_of_these_hosts
            self._close_connections(
                [
                    connection
                    for connection in self._connections
                    if connection.rank and connection.rank.is_fenced_by(rank)
                ]
            )

    def _close_connections(self, connections: list["FencedConnection"]) -> None:
        for connection in connections:
            connection.hang_up()
            self._connections.discard(connection)
        if connections:
            _log.error("connections to an old database server are closed", newest=str(self._newest))

    async def _mark(self, server: Server) -> None:
        """Writes the rank of the newest server to this server's `server_fence` row, for processes
        that can connect only to this server. Does nothing if the newest server is known only from a
        file that was written for other hosts: then this database may be a copy for a separate
        installation."""
        newest = self._newest
        assert newest is not None
        assert server.rank is not None
        is_same_database = newest.is_same_database(server.rank)
        if self._is_of_these_hosts and is_same_database and newest.is_newer_than(server.seen):
            try:
                await _write(server, _MARK, newest)
            except psycopg.errors.UndefinedTable:
                pass  # the schema is old or missing, which the schema check reports
            except (psycopg.Error, TimeoutError) as exc:
                _log.warning(
                    "the newest server's rank cannot be written to a server",
                    server=server.name,
                    reason=str(exc),
                )

    def _read_saved(self) -> None:
        if self._seen_file is None:
            return
        try:
            self._saved = json.loads(self._seen_file.read_text())
            # An older version wrote fewer values, and a newer version may write more.
            rank = Rank(*self._saved["newest"][: len(Rank._fields)])
            self._note(rank, is_of_these_hosts=self._saved["hosts"] == self._hosts)
            if len(self._saved["newest"]) < len(Rank._fields):
                _log.warning(
                    "the newest server's rank was written by an older version",
                    file=str(self._seen_file),
                    compared=str(rank),
                )
        except FileNotFoundError:
            self._saved = None
        except (OSError, ValueError, TypeError, KeyError) as exc:
            _log.warning(
                "the newest server's rank cannot be read",
                file=str(self._seen_file),
                reason=str(exc),
            )

    def _save(self) -> None:
        """Writes the newest server's rank to the file. Does nothing if the file already contains it, or
        if this rank is known only from a file that was written for other database hosts."""
        content = {"newest": self._newest and list(self._newest), "hosts": self._hosts}
        if self._seen_file is None or not self._is_of_these_hosts or content == self._saved:
            return
        temporary = self._seen_file.with_name(f"{self._seen_file.name}.{os.getpid()}")
        try:
            with temporary.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._seen_file)
            self._saved = content
        except OSError as exc:
            # Not logged as an error, because a command may run without a data folder.
            _log.info(
                "the newest server's rank was not saved", file=str(exc.filename), reason=str(exc)
            )

    @property
    def _hosts(self) -> list[str]:
        return sorted(name for name, _ in single_hosts(self._conninfo))


class FencedConnection(WatchedConnection):
    """Represents a connection to the newest server."""

    rank: Rank | None = None

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, fence: Fence, reachability: Reachability, **options: Any
    ) -> Self:
        began_at = asyncio.get_running_loop().time()
        try:
            connection = await super().connect(await fence.address(), **options)
            try:
                await fence.admit(connection)
            except BaseException:
                await connection.close()
                raise
        except psycopg.Error as exc:
            fence.forget_address()
            reachability.failed(began_at, exc)
            raise
        reachability.answered()
        return connection


def find_newest_server(
    conninfo: str, seen_file: Path | None, *, before_migrating: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Returns the newest server's address, and one sentence about each old server that accepts
    writes. If no server accepts writes or can be reached, returns the address of all hosts. Used by
    commands before they start an event loop. Raises Unavailable if no server that accepts writes may
    be used, or if `conninfo` is malformed. See `Fence` for `before_migrating`."""
    fence = Fence(conninfo, seen_file, before_migrating=before_migrating)
    try:
        return asyncio.run(fence.survey()), fence.old_servers
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        raise Unavailable(unreachable_detail(conninfo, exc)) from exc


def _is_outranked(server: Server, others: list[Server]) -> bool:
    return any(other.rank is not None and other.rank.is_newer_than(server.rank) for other in others)


async def _identify(connection: WatchedConnection, name: str, conninfo: str) -> Server:
    """Asks the server for its rank. Also sets the connection's `answer_within_s` and conventions."""
    connection.answer_within_s = _ANSWER_WITHIN_S
    try:
        await connection.execute(session_conventions().encode())
        row = await (await connection.execute(_IDENTIFY)).fetchone()
    except psycopg.OperationalError:
        raise
    except psycopg.DatabaseError:
        return Server(name, conninfo, None, None, accepts_writes=False)
    assert row is not None
    system_identifier, database, timeline, is_writable, started_at, has_fence = row
    accepts_writes = timeline is not None and is_writable
    epoch, history, seen = 0, None, None
    if has_fence:
        fence = await _read_fence(connection, timeline)
        if accepts_writes and fence[1] is None:
            async with connection.transaction():
                await connection.execute(_COMMIT_WITHOUT_STANDBY)
                await connection.execute(_BEGIN_HISTORY, {"timeline": timeline})
            fence = await _read_fence(connection, timeline)
        epoch, history, seen_epoch, *seen_values = fence
        seen = None if seen_epoch is None else Rank(seen_epoch, *seen_values)
    rank = None
    if timeline is not None:
        rank = Rank(epoch, timeline, system_identifier, database, history)
    return Server(name, conninfo, rank, seen, accepts_writes, has_fence, started_at)


async def _read_fence(connection: WatchedConnection, timeline: int | None) -> tuple[Any, ...]:
    row = await (await connection.execute(_READ_FENCE, (timeline,))).fetchone()
    assert row is not None
    return row


async def _write(server: Server, statement: LiteralString, rank: Rank) -> None:
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        connection = await WatchedConnection.connect(server.conninfo, autocommit=True)
    connection.answer_within_s = _ANSWER_WITHIN_S
    async with connection, connection.transaction():
        await connection.execute(session_conventions().encode())
        await connection.execute(_COMMIT_WITHOUT_STANDBY)
        await connection.execute(statement, rank._asdict())
