"""Lists the migrations of this code. Each migration declares the oldest code that works after it.

The migration files are parsed and not imported, because a serving process must not need Alembic.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

# The commit before the whole schema became one file. No release had an older schema.
_LAST_UNRELEASED = "df368e9465eef213b8280d72fcc255902222265e"
VERSIONS = Path(__file__).parent / "migrations" / "versions"
_COMPATIBLE_FROM = re.compile(r'^compatible_from = "(\d{4})"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Revision:
    """Describes a migration. `compatible_from` is the revision of the oldest code that works with
    the schema after this migration."""

    number: str
    compatible_from: str
    # True if some code that works before this migration no longer works afterwards.
    contracts: bool

    @property
    def can_wait(self) -> bool:
        """Tells whether this code can serve before the migration is applied. This is true for a
        contracting migration that only removes objects which this code no longer uses."""
        return self.contracts and self.compatible_from < self.number


@functools.cache
def revisions() -> tuple[Revision, ...]:
    """Returns all migrations in their order. The name of each file begins with the number of its
    revision."""
    migrations: list[Revision] = []
    floor = ""
    for path in sorted(VERSIONS.glob("[0-9]*.py")):
        declared = _COMPATIBLE_FROM.search(path.read_text())
        assert declared is not None, f"{path.name} does not declare compatible_from"
        migrations.append(Revision(path.name[:4], declared[1], contracts=declared[1] > floor))
        floor = max(floor, declared[1])
    return tuple(migrations)


def code_revision() -> str:
    return revisions()[-1].number


def serving_revision() -> str:
    """Returns the oldest revision of the schema with which this code can serve. All later
    migrations can wait."""
    return next(migration.number for migration in reversed(revisions()) if not migration.can_wait)


def unreleased_schema(revision: str) -> str | None:
    """Returns why no migration leads from this schema here: it's older than the first release."""
    if revision >= revisions()[0].number:
        return None
    return (
        f"The database's schema is at {revision}, from before the first release, and can't be "
        f"migrated; the last code that reads it is commit {_LAST_UNRELEASED}."
    )
