"""A transaction of two round trips: everything that it reads, then everything that it writes.

The driver's own pipeline waits for the socket once a statement, which costs a busy process more than
all the rest of an admission. Here statements are prepared once a connection, travel in one packet,
and their results are read together, over the driver's published interface to libpq.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import LiteralString, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors as pg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
Parameter: TypeAlias = str | int | Sequence[object] | None
Rows: TypeAlias = list[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """One that is prepared under its name; parameters are written `%s`, as for the driver."""

    name: LiteralString
    sql: LiteralString

    @property
    def numbered(self) -> str:
        """As the server writes parameters."""
        first, *rest = self.sql.split("%s")
        return first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))


Call: TypeAlias = tuple[Statement, tuple[Parameter, ...]]

# The server prepares neither; neither needs it.
_UNNAMED = ""
_BEGIN: Call = (Statement(_UNNAMED, "BEGIN"), ())
_COMMIT: Call = (Statement(_UNNAMED, "COMMIT"), ())


class PlansDropped(Exception):
    """The server has forgotten what was prepared, and so has written nothing. Trying again helps."""


@dataclass(slots=True)
class _Prepared:
    """What is prepared on a connection, and under which name. Names carry a number: what was lost
    is not prepared under the same name again, because parts of it may be there."""

    generation: int = 0
    names: dict[str, bytes] = field(default_factory=dict)

    def forget(self) -> None:
        self.generation += 1
        self.names.clear()


_prepared: WeakKeyDictionary[Connection, _Prepared] = WeakKeyDictionary()


class RoundTrips:
    """The transaction on one connection. Between its two trips the connection can be used as ever.
    Who leaves it without `commit` leaves a transaction open, which is not this file's to end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._prepared = _prepared.setdefault(connection, _Prepared())

    async def begin(self, *calls: Call) -> list[Rows]:
        """Begins, and returns the rows of each statement."""
        try:
            found = await self._run((_BEGIN, *calls))
        except pg.InvalidSqlStatementName:
            # The driver drops all that is prepared after a rollback.
            self._prepared.forget()
            await self.connection.rollback()
            found = await self._run((_BEGIN, *calls))
        return found[1:]

    async def commit(self, *calls: Call) -> None:
        """Commits when it returns. Where a statement is refused, its error is raised and nothing
        is committed; any other failure leaves it open whether it was."""
        try:
            await self._run((*calls, _COMMIT))
        except pg.InvalidSqlStatementName as exc:
            self._prepared.forget()
            raise PlansDropped from exc

    async def _run(self, calls: Sequence[Call]) -> list[Rows]:
        await self._prepare(calls)
        pgconn = self.connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            for call in calls:
                self._send(call)
            pgconn.pipeline_sync()
            await _sent(pgconn)
            results = [await _next_result(pgconn) for _ in calls]
            mark = await _next_result(pgconn)
            assert mark.status == pq.ExecStatus.PIPELINE_SYNC
            pgconn.exit_pipeline_mode()
        except BaseException:
            # Nobody knows how much of it is still to come.
            await self.connection.close()
            raise
        return [self._rows(result) for result in results]

    async def _prepare(self, calls: Sequence[Call]) -> None:
        for statement, _ in calls:
            if statement.name != _UNNAMED and statement.name not in self._prepared.names:
                name = f"{statement.name}_{self._prepared.generation}"
                # Known before it is: who is interrupted here leaves it in doubt.
                self._prepared.names[statement.name] = name.encode()
                preparing = f"PREPARE {name} AS {statement.numbered}"
                await self.connection.execute(preparing.encode(), prepare=False)

    def _send(self, call: Call) -> None:
        statement, parameters = call
        values = [_text(parameter) for parameter in parameters]
        pgconn = self.connection.pgconn
        if statement.name == _UNNAMED:
            pgconn.send_query_params(statement.sql.encode(), values)
        else:
            pgconn.send_query_prepared(self._prepared.names[statement.name], values)

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        if result.status == pq.ExecStatus.TUPLES_OK:
            transformer = Transformer(self.connection)
            transformer.set_pgresult(result)
            return transformer.load_rows(0, result.ntuples, tuple)
        if result.status == pq.ExecStatus.COMMAND_OK:
            return []
        raise pg.error_from_result(result, encoding="utf-8")


def _text(parameter: Parameter) -> bytes | None:
    if parameter is None:
        return None
    if isinstance(parameter, str | int):
        return str(parameter).encode()
    return ("{" + ",".join(map(str, parameter)) + "}").encode()


async def _sent(pgconn: pq.abc.PGconn) -> None:
    while pgconn.flush():
        await _ready(pgconn, writing=True)
        pgconn.consume_input()


async def _next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult:
    """The next one that is not just the end of the one before."""
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
    """Until something came, or, where there is more to write, until that is possible."""
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
