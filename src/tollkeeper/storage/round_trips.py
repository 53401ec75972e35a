"""Transactions that take one or two round trips instead of one for each statement.

The driver's own pipeline waits for the socket once for each statement, which costs a busy process
more than all the rest of an admission. Here statements are prepared once for each connection, all
statements of a round trip are sent together, and their results are read together, over the driver's
published interface to libpq.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import LiteralString, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg import abc, pq
from psycopg import errors as pg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.rows import TupleRow

from tollkeeper.storage.watched_connection import WatchedConnection

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
# What a parameter can be. It travels as text, so the statement says which type it has (`%s::uuid[]`)
# unless the server can infer it.
Scalar: TypeAlias = UUID | str | int | None
Parameter: TypeAlias = Scalar | list[UUID] | list[str] | list[int] | list[str | None]
Rows: TypeAlias = list[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is prepared under its name; parameters are written `%s`, as for the driver."""

    name: LiteralString
    sql: LiteralString

    def bind(self, *parameters: Parameter) -> "BoundStatement":
        return BoundStatement(self, parameters)

    @property
    def numbered(self) -> str:
        """The SQL with parameters as the server writes them: `$1`, `$2` and so on."""
        first, *rest = self.sql.split("%s")
        return first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))


class BoundStatement(NamedTuple):
    """A statement with the values of its parameters."""

    statement: Statement
    parameters: tuple[Parameter, ...]


# Statements without a name are not prepared: these two gain nothing by it.
_UNNAMED = ""
_BEGIN = Statement(_UNNAMED, "BEGIN").bind()
_COMMIT = Statement(_UNNAMED, "COMMIT").bind()


class PlansDropped(Exception):
    """The server no longer has a statement that was prepared. Nothing was written, and the next
    attempt prepares it again."""


@dataclass(frozen=True, slots=True)
class _Adapting:
    """What a transformer needs of its connection. It does not keep the connection alive, and text
    is UTF-8 without one."""

    adapters: AdaptersMap
    connection: None = None


@dataclass(slots=True)
class _Prepared:
    """The statements that are prepared on one connection, with their names on the server. A name
    carries a generation number: when statements were dropped, some of them may still exist, so none
    is prepared under the same name again."""

    generation: int = 0
    names: dict[str, bytes] = field(default_factory=dict)
    # What turns the rows of a statement into values; it is made from its first result.
    transformers: dict[str, abc.Transformer] = field(default_factory=dict)

    def forget(self) -> None:
        self.generation += 1
        self.names.clear()
        self.transformers.clear()


_prepared: WeakKeyDictionary[Connection, _Prepared] = WeakKeyDictionary()


class RoundTrips:
    """A transaction on one connection: either `begin` and then `commit`, or `run` alone. Between
    `begin` and `commit` the connection can be used in the ordinary way. Without `commit` the
    transaction stays open, and the caller has to roll it back."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._prepared = _prepared.setdefault(connection, _Prepared())

    async def begin(self, *statements: BoundStatement) -> list[Rows]:
        """Begins the transaction and returns the rows of each statement. One round trip."""
        return (await self._send_again(_BEGIN, *statements))[1:]

    async def read(self, *statements: BoundStatement) -> list[Rows]:
        """Runs the statements between `begin` and `commit`, and returns the rows of each. One round
        trip."""
        return await self._send_within(*statements)

    async def commit(self, *statements: BoundStatement) -> None:
        """Runs the statements and commits. One round trip. Where the server refuses a statement,
        its error is raised and nothing is committed; after any other error the commit may have
        happened or not."""
        await self._send_within(*statements, _COMMIT)

    async def _send_within(self, *statements: BoundStatement) -> list[Rows]:
        """Sends statements of a transaction that has begun."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName as exc:
            self._prepared.forget()
            raise PlansDropped from exc

    async def run(self, *statements: BoundStatement) -> list[Rows]:
        """A whole transaction in one round trip; returns the rows of each statement. The server
        treats statements that are sent together as one transaction and commits it after the last
        one. Errors mean the same as in `commit`."""
        return await self._send_again(*statements)

    async def _send_again(self, *statements: BoundStatement) -> list[Rows]:
        """Sends the first statements of a transaction. If the server has dropped one of them, which
        the driver makes it do after every rollback, nothing has happened and they are sent again."""
        try:
            return await self._send_all(*statements)
        except pg.InvalidSqlStatementName:
            self._prepared.forget()
            await self.connection.rollback()
            return await self._send_all(*statements)

    async def _send_all(self, *statements: BoundStatement) -> list[Rows]:
        # A value that cannot be sent is refused here, before anything was sent.
        values = [[as_text(value) for value in bound.parameters] for bound in statements]
        await self._prepare(statements)
        if not isinstance(self.connection, WatchedConnection):
            return await self._send_prepared(statements, values)
        watchdog = self.connection.start_watch()
        try:
            return await self._send_prepared(statements, values)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    async def _send_prepared(
        self, statements: Sequence[BoundStatement], values: Sequence[Sequence[bytes | None]]
    ) -> list[Rows]:
        pgconn = self.connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            for (statement, _), texts in zip(statements, values, strict=True):
                if statement.name == _UNNAMED:
                    pgconn.send_query_params(statement.sql.encode(), texts)
                else:
                    pgconn.send_query_prepared(self._prepared.names[statement.name], texts)
            pgconn.pipeline_sync()
            await _flush(pgconn)
            results = [await _next_result(pgconn) for _ in statements]
            while (end := await _next_result(pgconn)).status != pq.ExecStatus.PIPELINE_SYNC:
                results.append(end)  # the commit itself was refused
            pgconn.exit_pipeline_mode()
        except BaseException:
            # Results may still arrive on this connection: nobody else may use it.
            await self.connection.close()
            raise
        # There may be one more result than statements: the error of the commit.
        return [
            self._rows(result, statements[at].statement.name if at < len(statements) else _UNNAMED)
            for at, result in enumerate(results)
        ]

    async def _prepare(self, statements: Sequence[BoundStatement]) -> None:
        for statement, _ in statements:
            if statement.name != _UNNAMED and statement.name not in self._prepared.names:
                name = f"{statement.name}_{self._prepared.generation}"
                # Noted before it is done. If this is interrupted and the server has not prepared
                # it, the first use fails, and it is prepared under another name.
                self._prepared.names[statement.name] = name.encode()
                preparing = f"PREPARE {name} AS {statement.numbered}"
                await self.connection.execute(preparing.encode(), prepare=False)

    def _rows(self, result: pq.abc.PGresult, name: str) -> Rows:
        status = result.status
        if status == pq.ExecStatus.COMMAND_OK:
            return []
        if status == pq.ExecStatus.TUPLES_OK:
            transformer = self._prepared.transformers.get(name)
            if transformer is None:
                transformer = Transformer(_Adapting(self.connection.adapters))
                transformer.set_pgresult(result)
                if name != _UNNAMED:
                    self._prepared.transformers[name] = transformer
            else:
                # The columns of a prepared statement stay what they are.
                transformer.set_pgresult(result, set_loaders=False)
            rows = transformer.load_rows(0, result.ntuples, tuple)
            # The rows are copies: the result need not be kept until the next one.
            transformer.set_pgresult(None, set_loaders=False)
            return rows
        raise pg.error_from_result(result, encoding="utf-8")


def as_text(parameter: Parameter) -> bytes | None:
    """The parameter as PostgreSQL reads it in text format; None is NULL. Raises TypeError for a
    value of any other type, and the driver's DataError for text that PostgreSQL cannot store."""
    if parameter is None:
        return None
    if isinstance(parameter, list):
        return ("{" + ",".join(map(_array_element, parameter)) + "}").encode()
    return _scalar_text(parameter).encode()


def _scalar_text(value: object) -> str:
    match value:
        case str():
            if "\0" in value:
                # The protocol would silently end the text there.
                raise pg.DataError("PostgreSQL text cannot contain NUL (0x00) characters")
            return value
        case UUID():
            return str(value)
        case int() if not isinstance(value, bool):
            return str(value)
    raise TypeError(f"A value of type {type(value).__name__} cannot be sent as a parameter.")


def _array_element(value: Scalar) -> str:
    if value is None:
        return "NULL"
    text = _scalar_text(value)
    if not isinstance(value, str):
        return text
    # Always quoted: inside quotes an empty text, a comma, a brace or the word NULL is plain text.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _flush(pgconn: pq.abc.PGconn) -> None:
    while pgconn.flush():
        await _ready(pgconn, writing=True)
        pgconn.consume_input()


async def _next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult:
    """The next result, without the empty ones that end a statement."""
    while True:
        while pgconn.is_busy():
            await _ready(pgconn)
            pgconn.consume_input()
        result = pgconn.get_result()
        if pgconn.status == pq.ConnStatus.BAD:
            raise pg.OperationalError("the connection to the database is lost")
        if result is not None:
            return result


async def _ready(pgconn: pq.abc.PGconn, *, writing: bool = False) -> None:
    """Waits until the socket can be read, or, with `writing`, until it can be read or written."""
    loop = asyncio.get_running_loop()
    descriptor = pgconn.socket
    happened = loop.create_future()

    def wake() -> None:
        if not happened.done():
            happened.set_result(None)

    loop.add_reader(descriptor, wake)
    if writing:
        loop.add_writer(descriptor, wake)
    try:
        await happened
    finally:
        loop.remove_reader(descriptor)
        if writing:
            loop.remove_writer(descriptor)
