"""Records the statements that the code sends, each with its plan and the rows that the server read.

Before a statement runs, EXPLAIN ANALYZE runs it on the same connection, inside the same transaction,
and rolls it back. So the plan is the plan of the statement itself, and for a prepared statement it is
the prepared plan.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import pq

from tollkeeper.database.round_trips import BoundStatement, RoundTrips

_EXPLAIN = b"EXPLAIN (ANALYZE, BUFFERS, VERBOSE, TIMING OFF, FORMAT JSON) "
_EXPLAINABLE = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
# A full scan of at most this many rows is ignored.
_AS_GOOD_AS_EMPTY = 10
# Names of partitions (by month or day) begin with the name of their table.
_PARTITIONED = ("reservations", "resolutions", "overages", "activity", "policy_verdicts")


@dataclass(frozen=True, slots=True)
class Explained:
    """Contains one statement that was sent, and its plan."""

    text: str
    plan: dict[str, Any]

    @property
    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.plan]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    @property
    def scanned_whole(self) -> set[str]:
        """Returns the tables that were scanned completely, except almost empty ones, for example the
        partition of a future month."""
        return {
            table_of(node["Relation Name"])
            for node in self.nodes
            if node["Node Type"] == "Seq Scan" and _rows(node) > _AS_GOOD_AS_EMPTY
        }

    @property
    def tables(self) -> set[str]:
        return {table_of(node["Relation Name"]) for node in self.nodes if "Relation Name" in node}

    @property
    def rows_read(self) -> int:
        """Returns the number of rows read from tables and indexes, including those that a filter dropped."""
        return sum(
            _rows(node)
            for node in self.nodes
            if "Relation Name" in node and "Scan" in node["Node Type"]
        )

    @property
    def buffers(self) -> int:
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])


def _rows(node: dict[str, Any]) -> int:
    removed: float = node.get("Rows Removed by Filter", 0)
    removed += node.get("Rows Removed by Index Recheck", 0)
    loops, rows = float(node["Actual Loops"]), float(node["Actual Rows"])
    return round(loops * (rows + removed))


def table_of(relation: str) -> str:
    for table in _PARTITIONED:
        if relation == table or relation.startswith(f"{table}_"):
            return table
    return relation


@dataclass
class Recorder:
    statements: list[Explained] = field(default_factory=list)
    on: bool = False

    @contextmanager
    def recording(self) -> Iterator[list[Explained]]:
        """Yields the list to which the statements of this block are added."""
        self.statements = []
        self.on = True
        try:
            yield self.statements
        finally:
            self.on = False

    @property
    def wanted(self) -> bool:
        """Returns whether to record now. Statements of the gateway's background chores are ignored."""
        task = asyncio.current_task()
        coroutine = None if task is None else task.get_coro()
        return self.on and getattr(coroutine, "__name__", "") != "_repeat"

    def note(self, text: str, result: pq.abc.PGresult) -> None:
        assert result.status == pq.ExecStatus.TUPLES_OK, (text, result.error_message)
        found = result.get_value(0, 0)
        assert found is not None
        self.statements.append(Explained(" ".join(text.split()), json.loads(found)[0]["Plan"]))


@contextmanager
def _rolled_back(pgconn: pq.abc.PGconn) -> Iterator[None]:
    """Uses libpq directly, because the driver would drop its prepared statements after a rollback."""
    outside = pgconn.transaction_status == pq.TransactionStatus.IDLE
    _run(pgconn, b"BEGIN" if outside else b"SAVEPOINT explained")
    try:
        yield
    finally:
        _run(pgconn, b"ROLLBACK" if outside else b"ROLLBACK TO SAVEPOINT explained")


def _run(pgconn: pq.abc.PGconn, command: bytes) -> None:
    assert pgconn.exec_(command).status == pq.ExecStatus.COMMAND_OK, command


def install(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces methods of the driver and of `RoundTrips`, so that statements are explained while the
    recorder is on."""
    execute, send_all = psycopg.AsyncCursor.execute, RoundTrips._send_all

    async def explained_execute(
        cursor: psycopg.AsyncCursor[Any], query: Any, params: Any = None, **options: Any
    ) -> Any:
        if recorder.wanted and isinstance(query, str) and query.split()[0] in _EXPLAINABLE:
            bound = psycopg.AsyncClientCursor(cursor.connection).mogrify(query, params)
            with _rolled_back(cursor.connection.pgconn):
                recorder.note(query, cursor.connection.pgconn.exec_(_EXPLAIN + bound.encode()))
        return await execute(cursor, query, params, **options)

    async def explained_send_all(trips: RoundTrips, *statements: BoundStatement) -> Any:
        if recorder.wanted:
            await trips._prepare(*statements)
            if not _still_prepared(trips, statements):
                trips._prepared.forget()
                await trips._prepare(*statements)
            with _rolled_back(trips.connection.pgconn):
                _explain_prepared(recorder, trips, statements)
        return await send_all(trips, *statements)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", explained_execute)
    monkeypatch.setattr(RoundTrips, "_send_all", explained_send_all)


def _still_prepared(trips: RoundTrips, statements: Sequence[BoundStatement]) -> bool:
    """Returns whether all are still prepared. The driver drops prepared statements after a rollback."""
    result = trips.connection.pgconn.exec_(b"SELECT name FROM pg_prepared_statements")
    there = {result.get_value(row, 0) for row in range(result.ntuples)}
    return {trips._prepared.names[one.name] for one, _ in statements if one.name} <= there


def _explain_prepared(
    recorder: Recorder, trips: RoundTrips, statements: Sequence[BoundStatement]
) -> None:
    pgconn = trips.connection.pgconn
    for statement, texts in statements:
        if not statement.name:
            continue  # This is the BEGIN or COMMIT of the transaction.
        values = b", ".join(_literal(pgconn, text) for text in texts)
        name = trips._prepared.names[statement.name]
        result = pgconn.exec_(_EXPLAIN + b"EXECUTE " + name + (b"(%b)" % values if values else b""))
        recorder.note(statement.sql, result)


def _literal(pgconn: pq.abc.PGconn, value: bytes | None) -> bytes:
    return b"NULL" if value is None else bytes(pq.Escaping(pgconn).escape_literal(value))
