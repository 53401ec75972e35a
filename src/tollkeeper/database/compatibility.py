"""Decides whether this code works with a schema. `schema_revisions` says for each applied migration
which code is the oldest that works after it, so old code can judge migrations it doesn't know.
`code_revision` is this code's newest migration, `serving_revision` the oldest schema it can serve
with: later ones only remove what's unused."""

from dataclasses import dataclass
from typing import LiteralString

import psycopg

from tollkeeper.database.database import Connection
from tollkeeper.database.revisions import code_revision, serving_revision, unreleased_schema

_TABLES: LiteralString = "SELECT to_regclass('alembic_version'), to_regclass('schema_revisions')"
_REVISION: LiteralString = "SELECT version_num FROM alembic_version"
# `compatible_from` is NULL if the current revision has no row: then nobody knows which code works.
_STATE: LiteralString = """
    SELECT v.version_num, CASE
        WHEN EXISTS (SELECT FROM schema_revisions r WHERE r.revision = v.version_num)
        THEN (SELECT max(compatible_from) FROM schema_revisions) END
    FROM alembic_version v
"""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Both None if there's no schema; `compatible_from` also if the schema doesn't record it."""

    revision: str | None
    compatible_from: str | None

    @property
    def is_newer(self) -> bool:
        return self.revision is not None and self.revision > code_revision()

    @property
    def is_older(self) -> bool:
        """This code can serve after a migration, but not before."""
        return (
            self.revision is not None
            and unreleased_schema(self.revision) is None
            and self.revision < serving_revision()
        )

    @property
    def refusal(self) -> str | None:
        """In one line, if this code can't work with the schema."""
        if self.revision is None:
            return (
                f"The database has no schema yet, this code needs {serving_revision()}: "
                "run `tollkeeper migrate`."
            )
        if reason := unreleased_schema(self.revision):
            return reason
        if self.is_older:
            return (
                f"The database's schema is at {self.revision}, this code needs "
                f"{serving_revision()}: run `tollkeeper migrate --expand`."
            )
        code = code_revision()
        # "9999" is above every revision: a newer schema without `compatible_from` is rejected.
        if not self.is_newer or (self.compatible_from or "9999") <= code:
            return None
        floor = (
            f" and works with code from {self.compatible_from} on" if self.compatible_from else ""
        )
        return (
            f"The database's schema is at {self.revision}, newer than this code's {code}{floor}: "
            "run a newer tollkeeper. To return to this code, restore a backup."
        )

    @property
    def description(self) -> str:
        """For a schema with which this code works."""
        if self.is_newer:
            return (
                f"{self.revision}, newer than this code's {code_revision()} and compatible: "
                f"it works with code from {self.compatible_from} on"
            )
        if self.revision != code_revision():
            return (
                f"{self.revision}; when no process runs older code, run `tollkeeper migrate` to "
                f"remove unused objects (revision {code_revision()})"
            )
        return str(self.revision)


def read_schema_state(connection: psycopg.Connection) -> SchemaState:
    """Of any database, even an empty one."""
    row = connection.execute(_TABLES).fetchone()
    assert row is not None
    if row[0] is None:
        return SchemaState(None, None)
    state = connection.execute(_REVISION if row[1] is None else _STATE).fetchone()
    if state is None:
        return SchemaState(None, None)
    return SchemaState(str(state[0]), None if row[1] is None else state[1])


async def find_schema_state(connection: Connection) -> SchemaState:
    """For a serving process, which knows that the tables exist."""
    state = await (await connection.execute(_STATE)).fetchone()
    return SchemaState(None, None) if state is None else SchemaState(*state)
