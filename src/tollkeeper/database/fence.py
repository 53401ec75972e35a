"""Fences off old PostgreSQL servers: we only write to the newest one we know. After a failover, the
old primary may come back and accept writes beside the promoted server. PostgreSQL's timeline number
grows with each promotion or point-in-time restore, so the lower one is old. Two copies can be
promoted to the same number, so the first process on a timeline writes a random token (its history),
and the same timeline with another history is refused. A loaded dump is another database, even on
the same server. We learn about the newest server from our connections, a file of this machine's
earlier processes, the address's other hosts, and each server's `server_fence` row. Each process
writes the newest rank (epoch and timeline) it knows there, on every writable server, even an old
one, so those who only reach the old one refuse it too."""

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, Self
from weakref import WeakSet

import psycopg

from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.core.runtime.late_log import LateLogger
from tollkeeper.database.reachability import Reachability, unreachable_detail
from tollkeeper.database.sessions import session_conninfo, session_conventions, single_hosts
from tollkeeper.database.watched_connection import WatchedConnection

# How long a survey of all hosts waits for each.
_ANSWER_WITHIN_S = 1.0
_log = LateLogger("tollkeeper.fence")

# NULL on a standby. From the WAL file's name, which begins with the timeline in hex:
# `pg_control_checkpoint` lags behind after a promotion.
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
# An old primary's standby may no longer follow it, so don't wait for it.
_COMMIT_WITHOUT_STANDBY: LiteralString = "SET LOCAL synchronous_commit TO local"


class ServerFenced(psycopg.OperationalError):
    """Raised if no server that accepts writes may be used, because all of them are old, or because
    several accept writes and none of these is known to be the newest."""


class Rank(NamedTuple):
    """How new a server is. Timelines only compare within an epoch. Operators increment the epoch
    with `tollkeeper database accept`."""

    epoch: int
    timeline: int
    system_identifier: int
    # Its oid: a dump that's loaded beside the original has another one. None only in an older
    # version's file.
    database: int | None = None
    # The timeline's token; None if unwritten, or in an older version's file.
    history: str | None = None

    def is_newer_than(self, other: "Rank | None") -> bool:
        if other is None or self.epoch != other.epoch:
            return other is None or self.epoch > other.epoch
        return self.is_same_database(other) and self.timeline > other.timeline

    def is_fenced_by(self, other: "Rank | None") -> bool:
        """If `other` is the newest. Another database or history of the same epoch can't be
        compared, so it's fenced off too."""
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
    # None for a standby, or a service without the functions in `_IDENTIFY`.
    rank: Rank | None
    # Of the newest server that any process recorded in this one's row.
    seen: Rank | None
    accepts_writes: bool
    # A new database has no tables.
    has_fence: bool = False
    started_at: datetime | None = None


class Fence:
    """The newest server this process knows; checks each new connection. Tasks of one event loop can
    share it."""

    def __init__(
        self, conninfo: str, seen_file: Path | None, *, before_migrating: bool = False
    ) -> None:
        """`seen_file`: what this machine's earlier processes recorded. `before_migrating` doesn't
        refuse servers without `server_fence`, because `accept` needs that table."""
        self._conninfo = conninfo
        self._seen_file = seen_file
        self._before_migrating = before_migrating
        self._newest: Rank | None = None
        # False if it's only known from a file for other database hosts.
        self._is_of_these_hosts = False
        # `seen_file` as last read or written.
        self._saved: dict[str, Any] | None = None
        self._address: str | None = None
        self._surveying: asyncio.Task[str] | None = None
        self._connections: WeakSet[FencedConnection] = WeakSet()
        # From the last survey, a sentence for each old one that accepts writes.
        self.old_servers: tuple[str, ...] = ()

    async def address(self) -> str:
        """As the last survey found it; otherwise runs one."""
        return self._address or await self.survey()

    def forget_address(self) -> None:
        self._address = None

    async def survey(self) -> str:
        """The newest server's address, or that of all hosts if none accepts writes. ServerFenced if
        none that does may be used. Concurrent callers share one survey."""
        if self._surveying is None or self._surveying.done():
            self._surveying = asyncio.create_task(self._survey())
        return await asyncio.shield(self._surveying)

    async def close(self) -> None:
        if self._surveying is not None:
            self._surveying.cancel()
            await asyncio.gather(self._surveying, return_exceptions=True)

    async def admit(self, connection: "FencedConnection") -> None:
        """ServerFenced if the new connection's server is old."""
        server = await _identify(connection, f"{connection.info.host}:{connection.info.port}", "")
        self._note(server.rank)
        self._note(server.seen)
        self._save()
        self._refuse_old(server)
        connection.rank = server.rank
        self._connections.add(connection)

    async def accept(self) -> Rank:
        """Gives the writable server the highest epoch. StateConflict unless exactly one accepts
        writes and has `server_fence`."""
        self._read_saved()
        writable = [server for server in await self._ask_all() if server.accepts_writes]
        # The same start time means one server with two host names.
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
        """For new connections, and a sentence for each old server that accepts writes."""
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
        # Newest first, because `_note` keeps the first of two that can't be compared.
        for server in (*newest, *servers):
            self._note(server.rank)
            self._note(server.seen)
        self._save()
        await asyncio.gather(*(self._mark(server) for server in writable))
        for server in newest:
            self._refuse_old(server)
        # If none accepts writes, return all hosts: the driver then fails with an explanation.
        address = newest[0].conninfo if newest else session_conninfo(self._conninfo)
        return address, tuple(self._why_old(server) for server in writable if server not in newest)

    async def _ask_all(self) -> list[Server]:
        hosts = single_hosts(session_conninfo(self._conninfo))
        # Of several hosts, ask each, writable or not. A single name may resolve to several servers,
        # so the driver picks one by the address's attributes.
        attributes = {"target_session_attrs": "any"} if len(hosts) > 1 else {}
        answers = await asyncio.gather(*(self._ask(*host, **attributes) for host in hosts))
        return [server for server in answers if server is not None]

    async def _ask(self, name: str, conninfo: str, **attributes: Any) -> Server | None:
        """With `attributes` instead of the address's own. None if no server answers in time."""
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
            # At once, so connections to an old server close without waiting for hosts that don't
            # answer.
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
        # A rank that only other processes wrote to it can get a server refused.
        assert server.rank is not None
        newest = self._newest if server.rank.is_fenced_by(self._newest) else server.seen
        return (
            f"{server.name} accepts writes and is not the newest server (it has {server.rank}; "
            f"the newest has {newest}): stop it, or run `tollkeeper database accept` to use it"
        )

    def _note(self, rank: Rank | None, *, is_of_these_hosts: bool = True) -> None:
        """If it's the newest, closes connections to older servers."""
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
        """Writes the newest rank to this server's row, for those who only reach this one. Not if
        it's only known from a file for other hosts: this database may be a copy for another
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
            # An older version wrote fewer values, a newer one may write more.
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
        """Only if it's new, and not just known from a file for other hosts."""
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
            # No error: a command may run without a data folder.
            _log.info(
                "the newest server's rank was not saved", file=str(exc.filename), reason=str(exc)
            )

    @property
    def _hosts(self) -> list[str]:
        return sorted(name for name, _ in single_hosts(self._conninfo))


class FencedConnection(WatchedConnection):
    """To the newest server."""

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
    """For commands, before they start an event loop. Also a sentence for each old server that
    accepts writes. All hosts if none accepts writes or answers. Unavailable if none that does may
    be used, or `conninfo` is malformed. `before_migrating` as in `Fence`."""
    fence = Fence(conninfo, seen_file, before_migrating=before_migrating)
    try:
        return asyncio.run(fence.survey()), fence.old_servers
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        raise Unavailable(unreachable_detail(conninfo, exc)) from exc


def _is_outranked(server: Server, others: list[Server]) -> bool:
    return any(other.rank is not None and other.rank.is_newer_than(server.rank) for other in others)


async def _identify(connection: WatchedConnection, name: str, conninfo: str) -> Server:
    """Also sets the connection's `answer_within_s` and conventions."""
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
