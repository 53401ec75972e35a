"""Reads the declarations in this code's migration files.

The files are parsed and not imported, because a serving process must not need Alembic.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

VERSIONS = Path(__file__).parent / "migrations" / "versions"
_COMPATIBLE_FROM = re.compile(r'^compatible_from = "(\d{4})"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Revision:
    """Describes a migration. `compatible_from` is the oldest code that works with the schema after
    it."""

    number: str
    compatible_from: str
    # Whether code that worked with the previous schema does not work after it.
    contracts: bool

    @property
    def can_wait(self) -> bool:
        """Tells whether this code also serves before the migration is applied. A contracting
        migration removes objects that newer code no longer uses, so newer code does not depend on
        it."""
        return self.contracts and self.compatible_from < self.number


@functools.cache
def revisions() -> tuple[Revision, ...]:
    """Returns all migrations in their order. The file names begin with the revision."""
    found: list[Revision] = []
    floor = ""
    for path in sorted(VERSIONS.glob("[0-9]*.py")):
        declared = _COMPATIBLE_FROM.search(path.read_text())
        assert declared is not None, f"{path.name} does not declare compatible_from"
        found.append(Revision(path.name[:4], declared[1], contracts=declared[1] > floor))
        floor = max(floor, declared[1])
    return tuple(found)


def code_revision() -> str:
    """Returns the newest migration of this code."""
    return revisions()[-1].number


def serving_revision() -> str:
    """Returns the oldest schema that this code serves with: later migrations can wait."""
    return next(found.number for found in reversed(revisions()) if not found.can_wait)
