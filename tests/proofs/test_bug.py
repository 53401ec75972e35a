"""Tests that planting changes only the location that a bug names, and fails if it is not found once."""

import ast
from pathlib import Path

import pytest

from tests.proofs.bug import Bug, LocationError, SqlBug
from tests.support.tables import each

_LEDGER = '''
"""Hold money, in ledger.py."""

WAIT_S: int = 3
LOCK = "SELECT FROM accounts\\n    ORDER BY id FOR UPDATE"


class Ledger:
    def hold(self, available, needed):
        """Lock the account FOR UPDATE if available >= needed."""
        log("hold",  # This comment does not matter.
            available=available)
        if (available
                >= needed):
            return self.lock(f"ORDER BY {self.column} FOR UPDATE")
        elif needed:
            raise ValueError
        return self.refuse(402, True, "No money.")

    async def settle(self, cost):
        try:
            await self.write(cost)
            await self.write(cost, again=True)
        except OSError:
            self.failed = True
            wait(WAIT_S)


def read(text):
    return text
'''
_OTHER = """
def read(text):
    return text or None


def read_twice(text):
    return read(text), read(text)


def write(text):
    return text


def write(text):
    return text
"""

# Each row has the bug, the text that it changes, and the new text.
_PLANTED = {
    "an expression": (
        Bug("Ledger.hold", "available >= needed", "True", ()),
        "(available\n                >= needed)",
        "True",
    ),
    "a constant": (Bug("WAIT_S", "3", "4", ()), "= 3", "= 4"),
    "an argument": (
        Bug("Ledger.hold", "available=available", "available=needed", ()),
        "available=available",
        "available=needed",
    ),
    "consecutive arguments": (
        Bug("Ledger.hold", "402, True", "402, False", ()),
        "402, True",
        "402, False",
    ),
    "an argument that is removed": (Bug("Ledger.settle", "again=True", "", ()), ", again=True", ""),
    "a statement": (
        Bug("Ledger.settle", "self.failed = True", "raise", ()),
        "self.failed = True",
        "raise",
    ),
    "a call that is removed": (
        Bug("Ledger.settle", "await self.write(cost)", "", ()),
        "await self.write(cost)\n            ",
        "",
    ),
    "calls that are swapped": (
        Bug(
            "Ledger.settle",
            "await self.write(cost)\nawait self.write(cost, again=True)",
            "await self.write(cost, again=True)\nawait self.write(cost)",
            (),
        ),
        "await self.write(cost)\n            await self.write(cost, again=True)",
        "await self.write(cost, again=True)\n            await self.write(cost)",
    ),
    "a whole block": (
        Bug("Ledger.settle", "self.failed = True\nwait(WAIT_S)", "", ()),
        "self.failed = True\n            wait(WAIT_S)",
        "pass",
    ),
    "the first line of a branch": (
        Bug("Ledger.hold", "elif needed:", "elif needed < 0:", ()),
        "elif needed:",
        "elif needed < 0:",
    ),
    "the first line of a handler": (
        Bug("Ledger.settle", "except OSError:", "except ValueError:", ()),
        "except OSError:",
        "except ValueError:",
    ),
    "SQL in a constant": (
        SqlBug("LOCK", "accounts ORDER BY id FOR UPDATE", "accounts", ()),
        "accounts\\n    ORDER BY id FOR UPDATE",
        "accounts",
    ),
    "SQL in a method": (
        SqlBug("Ledger.hold", "FOR UPDATE", "FOR SHARE", ()),
        "} FOR UPDATE",
        "} FOR SHARE",
    ),
    "a symbol with its module": (
        Bug("books.ledger:read", "text", "None", ()),
        "return text",
        "return None",
    ),
    "two changes": (
        Bug("WAIT_S", "3", "4", (), also=(("Ledger.hold", "raise ValueError", "raise TypeError"),)),
        "= 3",
        "= 4",
    ),
}

_NO_LOCATION = {
    "a symbol that is missing": (Bug("Ledger.release", "needed", "0", ()), "no file"),
    "a symbol that two modules have": (
        Bug("read", "text", "None", ()),
        "books/ledger.py, other.py",
    ),
    "a symbol that a module has twice": (Bug("write", "text", "None", ()), "other.py, other.py"),
    "a module that is missing": (Bug("ledgers:WAIT_S", "3", "4", ()), "no file"),
    "code that is missing": (Bug("Ledger.hold", "available > needed", "True", ()), "0 times"),
    "code that is elsewhere": (Bug("Ledger.hold", "self.failed = True", "", ()), "0 times"),
    "code that is there twice": (Bug("read_twice", "read(text)", "None", ()), "2 times"),
    "code that is assigned": (Bug("Ledger.settle", "self.failed", "None", ()), "0 times"),
    "an expression that is removed": (Bug("Ledger.hold", "available >= needed", "", ()), "0 times"),
    "SQL that is missing": (SqlBug("LOCK", "FOR SHARE", "", ()), "0 times"),
    "SQL in a docstring": (SqlBug("Ledger.hold", "Lock the account", "", ()), "0 times"),
    "SQL that is there twice": (SqlBug("LOCK", "OR", "", ()), "2 times"),
    "a second change": (Bug("WAIT_S", "3", "4", (), also=(("LOCK", "5", "6"),)), "0 times"),
    "a change of nothing": (Bug("WAIT_S", "3", "( 3 )", ()), "changes nothing"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "ledger.py").write_text(_LEDGER)
    (tmp_path / "other.py").write_text(_OTHER)
    return tmp_path


@each("name", _PLANTED)
def test_a_bug_changes_its_location_only(source: Path, name: str) -> None:
    bug, right, wrong = _PLANTED[name]
    expected = _LEDGER.replace(right, wrong)
    for _, also_right, also_wrong in bug.also:
        expected = expected.replace(also_right, also_wrong)
    [(path, text)] = bug.planted(source).items()
    assert path == Path("books/ledger.py")
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(expected))


@each("name", _NO_LOCATION)
def test_a_bug_without_one_location_is_refused(source: Path, name: str) -> None:
    bug, reason = _NO_LOCATION[name]
    with pytest.raises(LocationError, match=reason):
        bug.planted(source)


def test_a_bug_can_change_several_files(source: Path) -> None:
    bug = Bug("WAIT_S", "3", "4", (), also=(("read_twice", "return read(text), read(text)", ""),))
    assert bug.planted(source).keys() == {Path("books/ledger.py"), Path("other.py")}
