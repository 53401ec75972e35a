"""Runs transactions in one or two network round trips, instead of one round trip for each
statement.

The driver's own pipeline waits for the socket once for each statement. In a busy process these waits
take more time than all other work of an admission. Here each statement is prepared once per connection.
All statements of a round trip are sent together, and then their results are read together, through
the driver's public interface to libpq.
"""

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

from tollkeeper.storage.watched_connection import WatchedConnection

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
# The Python types of parameters. Parameters are sent as text, so a statement must declare a
# parameter's SQL type (`%s::uuid[]`) unless the server can infer the type.
Scalar: TypeAlias = UUID | str | int | None
Parameter: TypeAlias = Scalar | list[UUID] | list[str] | list[int] | list[str | None]
Rows: TypeAlias = list[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """Describes a statement that is prepared under its name. Parameters are written as `%s`, as in
    the driver's statements. `returns_rows` is False if no caller needs the rows."""

    name: LiteralString
    sql: LiteralString
    returns_rows: bool = True

    def bind(self, *parameters: Parameter) -> "BoundStatement":
        return self, tuple(map(as_text, parameters))

    def bind_texts(self, *texts: bytes | None) -> "BoundStatement":
        """Binds parameters that are already in PostgreSQL's text format, such as JSON documents."""
        return self, texts

    @property
    def numbered(self) -> str:
        """Returns the SQL with the server's syntax for parameters: `$1`, `$2` and so on."""
        first, *rest = self.sql.split("%s")
        whole = first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))
        return whole.replace("%%", "%")


# A statement and its parameters in PostgreSQL's text format; None means NULL.
BoundStatement: TypeAlias = tuple[Statement, tuple[bytes | None, ...]]

# Statements without a name are not prepared: preparing BEGIN and COMMIT would save no time.
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
    """Stands in for a connection in a `Transformer`, so that the transformer does not keep the
    connection alive. Without a connection, the driver decodes text as UTF-8."""

    adapters: AdaptersMap
    connection: None = None


class RoundTrips:
    """Runs a transaction on one connection, either with `begin` and then `commit`, or with a single
    `run`. Between `begin` and `commit` the connection can be used normally. Without `commit` the
    transaction stays open, and the caller has to roll it back."""

    def __init__(self, connection: WatchedConnection) -> None:
        # Between `begin` and `commit`, the caller may read on this connection.
        self.connection = connection
        self._prepared = connection.prepared

    async def begin(self, *statements: BoundStatement) -> list[Rows]:
        """Begins the transaction and runs the statements, in one round trip. Returns the rows of
        each statement."""
        return (await self.run(_BEGIN, *statements))[1:]

    async def run(self, *statements: BoundStatement) -> list[Rows]:
        """Runs a whole transaction in one round trip, and returns the rows of each statement. The
        server treats statements that are sent together as one transaction, and commits it after the
        last statement. Errors mean the same as in `commit`.

        If the server has dropped one of these prepared statements, nothing was executed, so all
        statements are prepared and sent again. The driver makes the server drop prepared statements
        after every rollback."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName:
            self._prepared.forget()
            await self.connection.rollback()
            return await self._send_all(*statements)

    def commit(self, *statements: BoundStatement) -> Awaitable[object]:
        """Runs the statements and commits, in one round trip. If the server rejects a statement,
        raises the server's error, and nothing is committed. After any other error, the commit may
        or may not have happened."""
        return self.read(*statements, _COMMIT)

    async def read(self, *statements: BoundStatement) -> list[Rows]:
        """Runs statements between `begin` and `commit`, in one round trip. Returns the rows of each
        statement. Raises PlansDropped if the server has dropped a prepared statement, because only
        the caller can repeat the whole transaction."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName as exc:
            self._prepared.forget()
            raise PlansDropped from exc

    def translated(self, error: Exception) -> Exception:
        return error

    async def _send_all(self, *statements: BoundStatement) -> list[Rows]:
        """Sends the statements together. Returns the rows of each statement, or raises the error
        of the first statement that failed."""
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
            # Results of these statements may still arrive on this connection, so it cannot be used
            # again.
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
        """Prepares the statements that are not prepared yet, in one round trip."""
        preparing = []
        for statement, _ in statements:
            if statement.name not in self._prepared.names:
                name = f"{statement.name}_{self._prepared.generation}"
                # Record the name before preparing. If this task is interrupted before the server
                # has prepared the statement, the first use fails, and the statement is prepared
                # under a new name.
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
        # The columns of a prepared statement do not change, so the column loaders are reused.
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
    """Encodes a parameter in PostgreSQL's text format. None means NULL. Raises TypeError for types
    that are not in `Parameter`, and the driver's DataError for text that PostgreSQL cannot
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
    """Returns an array of UUIDs, which are given as integers, in PostgreSQL's text format."""
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
    # Text is always quoted, so that an empty text, a comma, a brace or the word NULL is plain text.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _read_results(pgconn: PGconn, statements: int) -> list[PGresult]:
    """Sends data that are still buffered, and returns the results of all statements. If the commit
    was rejected, its error is one more result than there are statements."""
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
            # A None marks the end of each statement's results. It never has to be waited for.
            results += iter(pgconn.get_result, None)
        if pgconn.status == _CONNECTION_BAD:
            raise pg.OperationalError("the connection to the database is lost")
        expected = 1
    return results[:-1]


async def _wait(loop: asyncio.AbstractEventLoop, descriptor: int, *, sending: bool = False) -> None:
    """Waits until the socket can be read or, while `sending`, written. The socket is registered for
    one wait only: it stays writable, which would wake up the event loop all the time, and after an
    error on the socket, uvloop refuses to use the old registration."""
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
