"""Tests that a test over a table runs every row, and names the rows that failed."""

import inspect

import pytest

from tests.support.tables import each
from tollkeeper.reports.alerts.rule import AlertState


def test_every_row_runs_and_failed_ones_are_named() -> None:
    seen = []

    @each(("word", "length"), [("one", 3), pytest.param("two", 0, id="wrong"), ("three", 4)])
    def check(word: str, length: int) -> None:
        seen.append(word)
        assert len(word) == length

    with pytest.raises(ExceptionGroup, match="2 of 3 rows failed") as failed:
        check()  # type: ignore[call-arg]
    assert seen == ["one", "two", "three"]
    notes = [error.__notes__ for error in failed.value.exceptions]
    assert notes == [["in the row wrong"], ["in the row 2: {'word': 'three', 'length': 4}"]]


def test_another_error_ends_the_test_and_names_its_row() -> None:
    @each("number", [1, 0, 2])
    def divide(number: int) -> None:
        assert 1 / number

    with pytest.raises(ZeroDivisionError) as failed:
        divide()  # type: ignore[call-arg]
    assert failed.value.__notes__ == ["in the row 1: {'number': 0}"]


def test_an_enumeration_is_a_table() -> None:
    found = []

    @each("value", AlertState)
    def check(value: AlertState) -> None:
        found.append(value)

    check()  # type: ignore[call-arg]
    assert found == list(AlertState)


def test_a_function_makes_the_rows_when_the_test_runs() -> None:
    made = []

    def rows() -> list[int]:
        made.append("rows")
        return [1, 2]

    @each("number", rows)
    def check(number: int) -> None:
        made.append(str(number))

    assert made == []
    check()  # type: ignore[call-arg]
    assert made == ["rows", "1", "2"]


@each("first", [1, 2])
@each("second", [3, 4], ids=str)
async def test_tables_are_combined_and_fixtures_stay(
    request: pytest.FixtureRequest, first: int, second: int
) -> None:
    assert request.node.name == "test_tables_are_combined_and_fixtures_stay"
    assert first < second


def test_only_fixtures_are_asked_for() -> None:
    assert list(inspect.signature(test_tables_are_combined_and_fixtures_stay).parameters) == [
        "request"
    ]
