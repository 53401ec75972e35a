"""Runs a test for all rows of a table, as one case of pytest.

    @each(("text", "count"), [("", 0), ("one", 1)])
    def test_words(text: str, count: int) -> None: ...

`pytest.mark.parametrize` has the same form, but makes a case of every row. Collecting, preparing and
reporting a case takes longer than most rows. Here all rows run in one case, and its error names the
rows that failed. All rows share the fixtures, so a test whose rows need new fixtures uses
`parametrize`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from _pytest.mark import ParameterSet

_SHOWN_LENGTH_MAX = 200
_Ids = Callable[[Any], object] | Sequence[str] | None
_Test = TypeVar("_Test", bound=Callable[..., Any])


class _Row:
    """Contains the values of a row by their names. The name of the row is made only if the row fails."""

    def __init__(self, number: int, read: ParameterSet, names: Sequence[str], ids: _Ids) -> None:
        assert not read.marks, "a row has no marks of its own"
        self.arguments = dict(zip(names, read.values, strict=True))
        self._number = number
        self._id = read.id
        self._ids = ids

    def __str__(self) -> str:
        if isinstance(self._id, str):
            return self._id
        if callable(self._ids):
            return "-".join(str(self._ids(value)) for value in self.arguments.values())
        if self._ids is not None:
            return self._ids[self._number]
        try:
            return f"{self._number}: {str(self.arguments)[:_SHOWN_LENGTH_MAX]}"
        except ValueError:  # A number is too long to be shown.
            return str(self._number)


class _Failures:
    """Collects the failures of one run."""

    def __init__(self) -> None:
        self._found: list[AssertionError] = []

    @contextmanager
    def of_row(self, row: "_Row") -> Iterator[None]:
        """Keeps a failed assertion of the block for later. Any other error ends the test at once."""
        try:
            yield
        except AssertionError as error:
            error.add_note(f"in the row {row}")
            self._found.append(error)
        except Exception as error:
            error.add_note(f"in the row {row}")
            raise

    def raise_if_any(self, rows: int) -> None:
        if self._found:
            raise ExceptionGroup(f"{len(self._found)} of {rows} rows failed", self._found)


def each(
    names: str | Sequence[str],
    rows: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    ids: _Ids = None,
) -> Callable[[_Test], _Test]:
    """Runs the test with the values of each row as the arguments of these names. `rows` may be a function,
    which is called only when the test runs, so that other processes do not create the rows."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    # An enumeration class is callable too, but it contains its rows already.
    make_rows = functools.partial(list, list(rows)) if isinstance(rows, Iterable) else rows

    def make_table() -> list[_Row]:
        table = [
            _Row(number, ParameterSet.extract_from(row, force_tuple=len(names) == 1), names, ids)
            for number, row in enumerate(make_rows())
        ]
        assert table, "a table without rows tests nothing"
        return table

    def decorate(test: _Test) -> _Test:
        async def run_awaited(**fixtures: Any) -> None:
            table, failures = make_table(), _Failures()
            for row in table:
                with failures.of_row(row):
                    await test(**fixtures, **row.arguments)
            failures.raise_if_any(len(table))

        def run(**fixtures: Any) -> None:
            table, failures = make_table(), _Failures()
            for row in table:
                with failures.of_row(row):
                    test(**fixtures, **row.arguments)
            failures.raise_if_any(len(table))

        chosen: Any = run_awaited if inspect.iscoroutinefunction(test) else run
        functools.update_wrapper(chosen, test)
        signature = inspect.signature(test)
        fixtures = [one for name, one in signature.parameters.items() if name not in names]
        chosen.__signature__ = signature.replace(parameters=fixtures)
        return chosen  # type: ignore[no-any-return]

    return decorate
