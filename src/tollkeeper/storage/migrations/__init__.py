"""Applies schema migrations while gateways serve requests. Each migration is plain SQL in
`versions/`.

Each migration runs in its own transaction. The transaction waits for a table lock only for a short
time, because calls wait behind the transaction. If it gets no lock, it is retried. A contracting
migration (after which older code no longer works) is rejected while a live process runs such code.
`CONTRIBUTING.md` explains how to write a migration.
"""

import time
from pathlib import Path
from types import ModuleType

import psycopg
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError

from tollkeeper.domain.errors import StateConflict, Unavailable
from tollkeeper.storage.processes import FIND_LIVE_BELOW, LEASE_S
from tollkeeper.storage.revisions import Revision, revisions, serving_revision, unreleased_schema
from tollkeeper.storage.sessions import session_conventions

_FOLDER = Path(__file__).parent
# The advisory lock for migrations. Its number must differ from all other advisory locks of the
# gateway.
_MIGRATION_LOCK = 7461_0001
# The maximum time to wait for that lock, and the interval of the attempts to take it.
_LOCK_WAIT_S = 600.0
_LOCK_POLL_S = 0.2
# The maximum wait for the lock of a table in one attempt. The wait is short, because all other
# users of the table have to wait during that time.
_LOCK_TIMEOUT_MS = 500
# The time for which a migration is retried, and the pause after each attempt.
_LOCK_ATTEMPTS_S = 120.0
_LOCK_PAUSE_S = 1.0
_NAMED_PROCESSES_MAX = 5


def migrate(
    conninfo: str,
    *,
    lease_s: float = LEASE_S,
    serving_only: bool = False,
    force: bool = False,
    until: str | None = None,
) -> str:
    """Upgrades the schema to the newest revision of this code, or to the revision `until`. Returns
    the schema's revision, which may be newer than this code. Concurrent runs wait for each other.
    With `serving_only`, applies only the migrations that this code needs for serving, and leaves
    out later contracting migrations. With `force`, ignores live processes with older code."""
    engine = create_engine(_sqlalchemy_url(conninfo), poolclass=NullPool)
    listen(engine, "connect", _set_conventions)
    try:
        with engine.connect() as connection:
            _prepare(connection)
            _lock_migrations(connection)
            last = until or (serving_revision() if serving_only else revisions()[-1].number)
            current = _current(connection)
            if current and (reason := unreleased_schema(current)):
                raise StateConflict(reason)
            for revision in revisions():
                if current < revision.number <= last:
                    _apply(engine, connection, revision, None if force else lease_s)
                    current = revision.number
            return current
    except DBAPIError as exc:
        raise Unavailable(f"The database cannot be migrated: {_reason(exc)}") from exc
    finally:
        engine.dispose()


def _set_conventions(connection: psycopg.Connection, _record: object) -> None:
    connection.execute(session_conventions().encode())
    connection.commit()


def _prepare(connection: Connection) -> None:
    for setting in (f"lock_timeout = {_LOCK_TIMEOUT_MS}", "synchronous_commit = on"):
        connection.execute(text(f"SET {setting}"))
    connection.commit()


def _lock_migrations(connection: Connection) -> None:
    """Waits until no other migration runs, and takes the lock until the connection ends. Polls for
    the lock, because a statement that waits for the lock would be an open transaction, and an open
    transaction blocks the concurrent index builds of the other run."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        is_locked = connection.scalar(
            text("SELECT pg_try_advisory_lock(:key)"), {"key": _MIGRATION_LOCK}
        )
        connection.commit()
        if is_locked:
            return
        if time.monotonic() > deadline:
            raise Unavailable("Another `tollkeeper migrate` has been running for ten minutes.")
        time.sleep(_LOCK_POLL_S)


def _current(connection: Connection) -> str:
    """Returns the number of the newest applied migration, or "" for an empty database."""
    with connection.begin():
        return MigrationContext.configure(connection).get_current_revision() or ""


def _apply(
    engine: Engine, connection: Connection, revision: Revision, lease_s: float | None
) -> None:
    directory = ScriptDirectory(str(_FOLDER))
    module = directory.get_revision(revision.number).module
    _build_indexes(engine, module)
    deadline = time.monotonic() + _LOCK_ATTEMPTS_S
    while True:
        try:
            with connection.begin():
                if revision.contracts and lease_s is not None:
                    _require_no_older_code(connection, revision, lease_s)
                context = MigrationContext.configure(connection)
                with Operations.context(context):
                    module.upgrade()
                context.stamp(directory, revision.number)
                _record(connection, revision)
        except DBAPIError as exc:
            busy = psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected
            if not isinstance(exc.orig, busy) or time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(_LOCK_PAUSE_S)


def _build_indexes(engine: Engine, module: ModuleType) -> None:
    """Builds the migration's `concurrent_indexes` without blocking writes. This dictionary maps the
    name of each index to the text after the name in the CREATE INDEX statement. Rebuilds an index
    that an earlier run left unfinished."""
    indexes: dict[str, str] = getattr(module, "concurrent_indexes", {})
    if not indexes:
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for name, rest in indexes.items():
            unfinished = connection.scalar(
                text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"),
                {"name": name},
            )
            if unfinished:
                connection.execute(text(f"DROP INDEX CONCURRENTLY {name}"))
            connection.execute(text(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} {rest}"))


def _require_no_older_code(connection: Connection, revision: Revision, lease_s: float) -> None:
    """Raises if a live process runs code that would not work with the new schema. Locks the table
    `processes`, so that no other process can register before the migration is committed. A process
    that registers later sees the new schema."""
    if connection.scalar(text("SELECT to_regclass('processes')")) is None:
        return
    connection.execute(text("LOCK TABLE processes IN SHARE ROW EXCLUSIVE MODE"))
    older = connection.execute(
        text(FIND_LIVE_BELOW), {"lease_s": lease_s, "floor": revision.compatible_from}
    ).all()
    if not older:
        return
    listed = ", ".join(
        f"{f'the {kind} on ' if kind else ''}{host or 'an unknown host'} pid {pid or 'unknown'} "
        f"(code {code or 'unknown'}, seen {seen} s ago)"
        for kind, host, pid, code, seen in older[:_NAMED_PROCESSES_MAX]
    )
    more = len(older) - _NAMED_PROCESSES_MAX
    raise StateConflict(
        f"Migration {revision.number} was not applied: the new schema requires code of revision "
        f"{revision.compatible_from} or later, but older code is still running: {listed}"
        + (f" and {more} more" if more > 0 else "")
        + ". Stop or upgrade these processes and run `tollkeeper migrate` again, or use --force to"
        " migrate in spite of them."
    )


def _record(connection: Connection, applied: Revision) -> None:
    """Records which code works with each applied revision, if the table `schema_revisions` already
    exists."""
    if connection.scalar(text("SELECT to_regclass('schema_revisions')")) is None:
        return
    for revision in revisions():
        if revision.number <= applied.number:
            connection.execute(
                text(
                    "INSERT INTO schema_revisions (revision, compatible_from) "
                    "VALUES (:revision, :floor) ON CONFLICT DO NOTHING"
                ),
                {"revision": revision.number, "floor": revision.compatible_from},
            )


def _reason(exc: DBAPIError) -> str:
    return str(exc.orig).strip().splitlines()[0]


def _sqlalchemy_url(conninfo: str) -> URL:
    parameters = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    return URL.create("postgresql+psycopg", query=parameters)
