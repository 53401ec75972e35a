"""Tests the parameters of round trips: values come back equal, and unsupported values are refused."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from enum import IntEnum
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from tests.support.tables import each
from tollkeeper.database.round_trips import Parameter, RoundTrips, Rows, Statement, as_text
from tollkeeper.database.watched_connection import WatchedConnection

_EVERYTHING = Statement(
    "test_everything",
    """
    SELECT %s::text, %s::uuid, %s::numeric::text, %s::uuid[], %s::text[], %s::bigint[],
           cardinality(%s::text[]), %s::text IS NULL
    """,
)
# Texts that change their meaning if they are not quoted or not escaped.
_TROUBLE = (
    "",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "{}",
    "{a,b}",
    ",",
    " ",
    "\n\t",
    "'",
    "ü\U0001f600",
    "\x01",
)
_texts = st.sampled_from(_TROUBLE) | st.text().filter(lambda text: "\0" not in text)
_bigints = st.integers(-(2**63), 2**63 - 1)


class Wire:
    """Runs a connection on its own event loop, because Hypothesis calls tests that are not coroutines."""

    def __init__(self, conninfo: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.connection = self._loop.run_until_complete(
            WatchedConnection.connect(conninfo, autocommit=True, client_encoding="utf8")
        )

    def send(self, *parameters: Parameter, by: Statement = _EVERYTHING) -> Rows:
        [rows] = self._loop.run_until_complete(
            RoundTrips(self.connection).run(by.bind(*parameters))
        )
        return rows

    def close(self) -> None:
        self._loop.run_until_complete(self.connection.close())
        self._loop.close()


@pytest.fixture(scope="module")
def wire(conninfo: str) -> Iterator[Wire]:
    made = Wire(conninfo)
    yield made
    made.close()


@settings(max_examples=300)
@given(
    text=st.none() | _texts,
    identity=st.none() | st.uuids(),
    number=st.none() | st.integers(),
    identities=st.lists(st.uuids(), max_size=5),
    texts=st.lists(st.none() | _texts, max_size=5),
    numbers=st.lists(_bigints, max_size=5),
)
@example(None, None, None, [], [], [])
@example("NULL", UUID(int=0), -(10**40), [UUID(int=0)], [None, *_TROUBLE, "None"], [0, -1])
def test_what_is_sent_comes_back_equal(
    wire: Wire,
    text: str | None,
    identity: UUID | None,
    number: int | None,
    identities: list[UUID],
    texts: list[str | None],
    numbers: list[int],
) -> None:
    [row] = wire.send(text, identity, number, identities, texts, numbers, texts, text)
    shown = None if number is None else str(number)
    assert row == (text, identity, shown, identities, texts, numbers, len(texts), text is None)


class _Small(IntEnum):
    ONE = 1


@each(
    "value",
    [
        True,
        1.5,
        Decimal(1),
        b"bytes",
        ("a", "b"),
        {"a": 1},
        {"a"},
        pytest.param(object(), id="object"),
        [True],
        [1.5],
        [["a"]],
        [b"a"],
    ],
    ids=repr,
)
def test_other_types_are_refused_before_anything_is_sent(wire: Wire, value: object) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        as_text(cast("Any", value))
    with pytest.raises(TypeError, match="cannot be sent"):
        wire.send(cast("Any", value), by=Statement("test_one", "SELECT %s::text"))
    _assert_usable(wire)


@each("value", ["\0", "a\0b", ["fine", "a\0b"]], ids=repr)
def test_text_with_nul_is_refused_before_anything_is_sent(wire: Wire, value: Any) -> None:
    """The protocol ends a text at its first NUL, so the rest would be lost silently."""
    with pytest.raises(pg.DataError, match="NUL"):
        wire.send(value, by=Statement("test_one", "SELECT %s::text"))
    _assert_usable(wire)


def test_text_that_is_no_unicode_is_refused(wire: Wire) -> None:
    with pytest.raises(UnicodeEncodeError):
        wire.send("\ud800", by=Statement("test_one", "SELECT %s::text"))
    _assert_usable(wire)


def test_an_enumeration_of_numbers_is_sent_as_its_number(wire: Wire) -> None:
    assert wire.send(_Small.ONE, by=Statement("test_number", "SELECT %s::integer")) == [(1,)]


def _assert_usable(wire: Wire) -> None:
    assert wire.connection.info.transaction_status == TransactionStatus.IDLE
    some = uuid4()
    assert wire.send(some, by=Statement("test_usable", "SELECT %s::uuid")) == [(some,)]
