"""Applies migrations (plain SQL in `versions/`) while gateways serve. Each is a transaction that
waits for table locks only shortly, because calls wait behind it, and is retried. A contracting one
(older code no longer works) is refused while a live process runs such code. `CONTRIBUTING.md` says
how to write one."""

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

from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.database.processes import FIND_LIVE_BELOW, LEASE_S
from tollkeeper.database.revisions import Revision, revisions, serving_revision, unreleased_schema
from tollkeeper.database.sessions import session_conventions

_FOLDER = Path(__file__).parent
# Must differ from all other advisory locks of the gateway.
_MIGRATION_LOCK = 7461_0001
# To wait for that lock, and the interval of attempts.
_LOCK_WAIT_S = 600.0
_LOCK_POLL_S = 0.2
# For a table's lock, per attempt. Short, because all its other users wait meanwhile.
_LOCK_TIMEOUT_MS = 500
# How long a migration is retried, and the pause in between.
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
    """To this code's newest revision, or `until`. Returns the schema's, which may be newer.
    Concurrent runs wait for each other. `serving_only` leaves out later contracting ones that
    serving doesn't need. `force` ignores live older code."""
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
    """Held until the connection ends. Polls: a waiting statement would be an open transaction,
    which blocks the other run's concurrent index builds."""
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
    """ "" for an empty database."""
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
    """`concurrent_indexes`, without blocking writes: from each index's name to the rest of CREATE
    INDEX. Rebuilds what an earlier run left unfinished."""
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
    """Locks `processes`, so no other can register before the migration is committed. A later one
    sees the new schema."""
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
    """Which code works with each, if `schema_revisions` already exists."""
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
