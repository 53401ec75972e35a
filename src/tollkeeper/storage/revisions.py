"""The migrations of this code, as their files declare them.

The files are read and not imported: a process that serves must not have to import Alembic.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

VERSIONS = Path(__file__).parent / "migrations" / "versions"
_COMPATIBLE_FROM = re.compile(r'^compatible_from = "(\d{4})"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Revision:
    """A migration. `compatible_from` is the oldest code that works with the schema after it."""

    number: str
    compatible_from: str
    # Code that worked with the schema before does not work with it afterwards.
    contracts: bool

    @property
    def can_wait(self) -> bool:
        """Whether this code also serves before the migration is applied. A migration that contracts
        removes what newer code no longer uses, so newer code does not depend on it."""
        return self.contracts and self.compatible_from < self.number


@functools.cache
def revisions() -> tuple[Revision, ...]:
    """All migrations in their order. The names of the files begin with their revision."""
    found: list[Revision] = []
    floor = ""
    for path in sorted(VERSIONS.glob("[0-9]*.py")):
        declared = _COMPATIBLE_FROM.search(path.read_text())
        assert declared is not None, f"{path.name} does not declare compatible_from"
        found.append(Revision(path.name[:4], declared[1], contracts=declared[1] > floor))
        floor = max(floor, declared[1])
    return tuple(found)


def code_revision() -> str:
    """The newest migration of this code."""
    return revisions()[-1].number


def serving_revision() -> str:
    """The oldest schema that this code serves with: later migrations can wait."""
    return next(found.number for found in reversed(revisions()) if not found.can_wait)
