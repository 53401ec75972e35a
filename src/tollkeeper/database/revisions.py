"""This code's migrations, and the oldest code that works after each. Parsed, not imported: a
serving process mustn't need Alembic."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

# The last before the whole schema became one file. No release had an older one.
_LAST_UNRELEASED = "df368e9465eef213b8280d72fcc255902222265e"
VERSIONS = Path(__file__).parent / "migrations" / "versions"
_COMPATIBLE_FROM = re.compile(r'^compatible_from = "(\d{4})"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Revision:
    """`compatible_from` is the oldest code that works after this migration."""

    number: str
    compatible_from: str
    # Some code that works before it no longer works afterwards.
    contracts: bool

    @property
    def can_wait(self) -> bool:
        """This code can serve without it: it only removes what this code no longer uses."""
        return self.contracts and self.compatible_from < self.number


@functools.cache
def revisions() -> tuple[Revision, ...]:
    """In order; file names begin with the revision."""
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
    """With which this code can serve. All later ones can wait."""
    return next(migration.number for migration in reversed(revisions()) if not migration.can_wait)


def unreleased_schema(revision: str) -> str | None:
    """None leads from there to here: it's older than the first release."""
    if revision >= revisions()[0].number:
        return None
    return (
        f"The database's schema is at {revision}, from before the first release, and can't be "
        f"migrated; the last code that reads it is commit {_LAST_UNRELEASED}."
    )
