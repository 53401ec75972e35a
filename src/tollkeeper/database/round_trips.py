"""Transactions in one or two round trips. The driver's own pipeline waits for the socket per
statement, which takes a busy process more time than the rest of an admission. Here each is prepared
once per connection, all are sent and then read together, through the driver's public interface to
libpq."""

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import LiteralString, TypeAlias
from uuid import UUID

import psycopg
from psycopg import errors as pg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow

from tollkeeper.database.watched_connection import WatchedConnection

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
# Sent as text, so declare the SQL type (`%s::uuid[]`) if the server can't infer it.
Scalar: TypeAlias = UUID | str | int | None
Parameter: TypeAlias = Scalar | list[UUID] | list[str] | list[int] | list[str | None]
Rows: TypeAlias = list[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """Prepared under its name. Parameters are `%s`, as in the driver. `returns_rows` is False if
    nobody needs them."""

    name: LiteralString
    sql: LiteralString
    returns_rows: bool = True

    def bind(self, *parameters: Parameter) -> "BoundStatement":
        return self, tuple(map(as_text, parameters))

    def bind_texts(self, *texts: bytes | None) -> "BoundStatement":
        """In PostgreSQL's text format already, such as JSON documents."""
        return self, texts

    @property
    def numbered(self) -> str:
        """With the server's syntax: `$1`, `$2` and so on."""
        first, *rest = self.sql.split("%s")
        whole = first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))
        return whole.replace("%%", "%")


# In PostgreSQL's text format; None means NULL.
BoundStatement: TypeAlias = tuple[Statement, tuple[bytes | None, ...]]

# Unnamed statements aren't prepared, which would save no time for BEGIN and COMMIT.
_BEGIN = Statement("", "BEGIN", returns_rows=False).bind_texts()
_COMMIT = Statement("", "COMMIT", returns_rows=False).bind_texts()

_SUCCESSES = {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}
_PIPELINE_SYNC = pq.ExecStatus.PIPELINE_SYNC
_CONNECTION_BAD = pq.ConnStatus.BAD
_status = attrgetter("status")


class PlansDropped(Exception):
    """Raised if the server has dropped a prepared statement of an open transaction. Nothing was
    written, and the next attempt prepares the statement again."""


@dataclass(frozen=True, slots=True)
class _AdaptersOnly:
    """Instead of a connection, which a `Transformer` would keep alive. Decodes text as UTF-8
    then."""

    adapters: AdaptersMap
    connection: None = None


class RoundTrips:
    """Either `begin` and then `commit`, with normal use of the connection in between, or a single
    `run`. Without `commit` it stays open, and you roll it back."""

    def __init__(self, connection: WatchedConnection) -> None:
        # To read on, between `begin` and `commit`.
        self.connection = connection
        self._prepared = connection.prepared

    async def begin(self, *statements: BoundStatement) -> list[Rows]:
        """In one round trip. Returns the rows of each statement."""
        return (await self.run(_BEGIN, *statements))[1:]

    async def run(self, *statements: BoundStatement) -> list[Rows]:
        """A whole transaction in one round trip: the server commits after the last statement.
        Errors are as in `commit`. If a prepared statement was dropped, nothing was executed, so all
        is prepared and sent again: after every rollback, the driver has them dropped."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName:
            self._prepared.forget()
            await self.connection.rollback()
            return await self._send_all(*statements)

    def commit(self, *statements: BoundStatement) -> Awaitable[object]:
        """In one round trip. If the server rejects a statement, nothing is committed; after any
        other error it may be or not."""
        return self.read(*statements, _COMMIT)

    async def read(self, *statements: BoundStatement) -> list[Rows]:
        """Between `begin` and `commit`, in one round trip. PlansDropped if the server has dropped
        one: only the caller can repeat the whole transaction."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName as exc:
            self._prepared.forget()
            raise PlansDropped from exc

    def translated(self, error: Exception) -> Exception:
        return error

    async def _send_all(self, *statements: BoundStatement) -> list[Rows]:
        """Raises the first failed statement's error."""
        pgconn, names = self.connection.pgconn, self._prepared.names
        for statement, _ in statements:
            if statement.name not in names:
                await self._prepare(*statements)
        pgconn.enter_pipeline_mode()
        self.connection.start_watch()
        try:
            for statement, texts in statements:
                if statement.name:
                    pgconn.send_query_prepared(names[statement.name], texts)
                else:
                    pgconn.send_query_params(statement.sql.encode(), texts)
            pgconn.pipeline_sync()
            results = await _read_results(pgconn, len(statements))
            pgconn.exit_pipeline_mode()
        except BaseException:
            # Results may still arrive, so this connection can't be used again.
            await self.connection.close()
            raise
        finally:
            self.connection.stop_watch()
        if not _SUCCESSES.issuperset(map(_status, results)):
            failed = next(result for result in results if result.status not in _SUCCESSES)
            raise pg.error_from_result(failed, encoding="utf-8")
        return [
            self._rows(statement, result) if statement.returns_rows else []
            for (statement, _), result in zip(statements, results, strict=True)
        ]

    async def _prepare(self, *statements: BoundStatement) -> None:
        """In one round trip."""
        preparing = []
        for statement, _ in statements:
            if statement.name not in self._prepared.names:
                name = f"{statement.name}_{self._prepared.generation}"
                # Before preparing: if this task is interrupted, the first use fails, and it's
                # prepared under a new name.
                self._prepared.names[statement.name] = name.encode()
                preparing.append(f"PREPARE {name} AS {statement.numbered};")
        await self.connection.execute("".join(preparing).encode(), prepare=False)

    def _rows(self, statement: Statement, result: PGresult) -> Rows:
        transformer = self._prepared.transformers.get(statement.name)
        if transformer is None:
            transformer = Transformer(_AdaptersOnly(self.connection.adapters))
            transformer.set_pgresult(result)
            if statement.name:
                self._prepared.transformers[statement.name] = transformer
        # A prepared statement's columns don't change, so reuse the loaders.
        transformer.set_pgresult(result, set_loaders=False)
        return transformer.load_rows(0, result.ntuples, tuple)


async def run_alone(
    connection: Connection, bound: BoundStatement, *, prepare: bool | None = None
) -> Rows:
    statement, texts = bound
    parameters = [None if text is None else text.decode() for text in texts]
    cursor = await connection.execute(statement.sql, parameters, prepare=prepare)
    return [] if cursor.description is None else await cursor.fetchall()


def as_text(parameter: Parameter) -> bytes | None:
    """None means NULL. TypeError if it's no `Parameter`, DataError for text PostgreSQL can't
    store."""
    if parameter is None:
        return None
    if isinstance(parameter, str):
        text = parameter
    elif isinstance(parameter, list):
        text = "{" + ",".join(map(_array_element, parameter)) + "}"
    else:
        text = _scalar_text(parameter)
    if "\0" in text:
        # The protocol would silently cut off the text at the NUL.
        raise pg.DataError("PostgreSQL text cannot contain NUL (0x00) characters")
    return text.encode()


def id_array(ids: Iterable[int]) -> bytes:
    """From integers, in PostgreSQL's text format."""
    return b"{%b}" % ",".join(map("{:032x}".format, ids)).encode()


def _scalar_text(value: object) -> str:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TypeError(f"A value of type {type(value).__name__} cannot be sent as a parameter.")


def _array_element(value: Scalar) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return _scalar_text(value)
    # Always quoted, so an empty text, a comma, a brace or the word NULL is plain text.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _read_results(pgconn: PGconn, statements: int) -> list[PGresult]:
    """Sends what's buffered first. A rejected commit's error is one more result."""
    loop, descriptor = asyncio.get_running_loop(), pgconn.socket
    results: list[PGresult] = []
    expected = statements + 1
    while pgconn.flush():
        await _wait(loop, descriptor, sending=True)
        pgconn.consume_input()
    while not results or results[-1].status != _PIPELINE_SYNC:
        for _ in range(expected):
            while pgconn.is_busy():
                await _wait(loop, descriptor)
                pgconn.consume_input()
            # A None ends each statement's results, and never has to be waited for.
            results += iter(pgconn.get_result, None)
        if pgconn.status == _CONNECTION_BAD:
            raise pg.OperationalError("the connection to the database is lost")
        expected = 1
    return results[:-1]


async def _wait(loop: asyncio.AbstractEventLoop, descriptor: int, *, sending: bool = False) -> None:
    """Until it's readable or, while `sending`, writable. Registered for one wait only: it stays
    writable, which would keep waking the loop, and after an error on the socket, uvloop refuses the
    old registration."""
    ready = loop.create_future()
    loop.add_reader(descriptor, _wake, ready)
    if sending:
        loop.add_writer(descriptor, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        if sending:
            loop.remove_writer(descriptor)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
