"""Creates later versions of the program: copies of the code with further migrations and changed texts."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree, ignore_patterns

import tollkeeper
from tests.support.program import Program
from tollkeeper.database.revisions import code_revision

_PACKAGE = Path(tollkeeper.__file__).parent


@dataclass(frozen=True)
class Migration:
    """Describes a migration, and writes it as a file for `database/migrations/versions`."""

    revision: str
    compatible_from: str
    sql: str = "SELECT"
    concurrent_indexes: dict[str, str] = field(default_factory=dict)

    def write(self, versions: Path, previous: str) -> None:
        (versions / f"{self.revision}_later.py").write_text(
            f'''"""A migration of a later version."""
from alembic import op

revision = "{self.revision}"
down_revision = "{previous}"
compatible_from = "{self.compatible_from}"
concurrent_indexes = {self.concurrent_indexes!r}


def upgrade() -> None:
    op.execute({self.sql!r})
'''
        )


@dataclass(frozen=True)
class Release:
    folder: Path

    def of(self, program: Program) -> Program:
        """Returns a program with the same settings that runs this release."""
        return replace(
            program, environment={**program.environment, "PYTHONPATH": str(self.folder)}, warm=False
        )


def make_release(
    folder: Path, *migrations: Migration, renamed: Iterable[tuple[str, str, str]] = ()
) -> Release:
    """Creates a release in a new folder. Each element of `renamed` is a file of `storage`, a word and its
    replacement. Everything except `storage` is a link to the present code."""
    package = folder / "tollkeeper"
    package.mkdir(parents=True)
    for entry in _PACKAGE.iterdir():
        if entry.name not in ("storage", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    storage = package / "storage"
    copytree(_PACKAGE / "storage", storage, ignore=ignore_patterns("__pycache__"))
    for name, word, other in renamed:
        text = (storage / name).read_text()
        assert word in text, name
        (storage / name).write_text(text.replace(word, other))
    previous = code_revision()
    for migration in migrations:
        migration.write(storage / "migrations" / "versions", previous)
        previous = migration.revision
    return Release(folder)
