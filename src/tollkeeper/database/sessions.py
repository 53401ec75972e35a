"""Every connection's settings, and checks that they stay. A pooler may drop them, or give the
session to another client between two transactions. Both could lose money without an error, so the
gateway won't start behind one."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tollkeeper.core.errors import StateConflict

_CONNECT_TIMEOUT_S = 5
_DEFAULT_PORT = 5432
# Closes even idle connections if the server's machine is silent for about 12 seconds.
# `tcp_user_timeout` is in milliseconds, the rest in seconds.
_KEEPALIVE: dict[str, int] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
# With these, an acknowledged settlement is durable.
_DURABLE_COMMIT = ("on", "remote_write", "remote_apply")
# What our SQL and the driver rely on: how values are written and read, where tables are. All are
# PostgreSQL's defaults, but a server, database or role can have others (`ALTER ROLE ... SET`).
CONVENTIONS = {
    "search_path": '"$user", public',
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "timezone": "UTC",
}
# Allowed values, for `check_session`.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "synchronous_commit": _DURABLE_COMMIT,
    "transaction_isolation": ("read committed",),
    "client_encoding": ("UTF8",),
}


# A gateway connects every few seconds, always to the same address.
@lru_cache(maxsize=16)
def session_conninfo(conninfo: str) -> str:
    """The address may override the keepalive parameters and `target_session_attrs`."""
    parts = conninfo_to_dict(conninfo)
    parameters: dict[str, str | int] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": "tollkeeper",
        # As `round_trips` sends and reads.
        "client_encoding": "utf8",
        **{name: parts.get(name) or value for name, value in _KEEPALIVE.items()},
    }
    if "," in str(parts.get("host") or parts.get("hostaddr") or ""):
        # Of several hosts, the writable one (the primary).
        parameters["target_session_attrs"] = parts.get("target_session_attrs") or "read-write"
    return make_conninfo(conninfo, **parameters)


@lru_cache(maxsize=16)
def single_hosts(conninfo: str) -> tuple[tuple[str, str], ...]:
    """For each: its name to show, and an address with only this host."""
    parts = conninfo_to_dict(conninfo)
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    hosts_and_addresses = []
    for number, host in enumerate(hosts):
        host_parts: dict[str, str] = {}
        for name in ("host", "hostaddr", "port"):
            values = str(parts.get(name) or "").split(",")
            if any(values):
                # A single value, such as one port, applies to every host.
                host_parts[name] = values[number] if len(values) == len(hosts) else values[0]
        port = host_parts.get("port") or _DEFAULT_PORT
        shown = host if host.startswith("/") else f"{host or 'the default host'}:{port}"
        hosts_and_addresses.append((shown, make_conninfo(conninfo, **host_parts)))
    return tuple(hosts_and_addresses)


def shown_hosts(conninfo: str) -> str:
    """With ports, but nothing else of the address, such as passwords."""
    try:
        return ", ".join(shown for shown, _ in single_hosts(conninfo))
    except psycopg.ProgrammingError:
        return "an address that cannot be read"


def session_settings(statement_timeout_s: float) -> str:
    """A statement, not connection parameters, which poolers don't pass on."""
    statement_ms = int(statement_timeout_s * 1000)
    settings = {
        "statement_timeout": statement_ms,
        "lock_timeout": statement_ms,
        "idle_in_transaction_session_timeout": 2 * statement_ms,
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        # Ends sessions of a silent machine, by default only after hours.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return _set_all(CONVENTIONS | settings)


def session_conventions() -> str:
    """Before any other statement, if a session doesn't get all `session_settings`."""
    return _set_all(CONVENTIONS)


def _set_all(settings: Mapping[str, object]) -> str:
    return "SELECT " + ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items()
    )


def check_session(connection: psycopg.Connection) -> None:
    """A one-line error if a setting isn't in effect."""
    settings = _SETTINGS | {name: (value,) for name, value in CONVENTIONS.items()}
    for name, value in current_settings(connection, settings):
        allowed = settings[name]
        if value not in allowed:
            raise StateConflict(
                f"The session setting {name} is {value} instead of {' or '.join(allowed)}: a pooler "
                "or proxy between the gateway and the database drops session settings."
            )


def current_settings(connection: psycopg.Connection, names: Iterable[str]) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT name, current_setting(name) FROM unnest(%s::text[]) name", (list(names),)
    ).fetchall()


def check_pooler(conninfo: str, connection: psycopg.Connection) -> None:
    """A one-line error if the session's server process changes between transactions. In transaction
    mode a pooler gives the last used one to the next client, so while the second connection keeps a
    transaction open there, the first gets another."""
    before = _server_process(connection)
    with psycopg.connect(conninfo) as other:
        _server_process(other)  # begins a transaction, which stays open until the block ends
        after = _server_process(connection)
    if before != after:
        raise StateConflict(
            "The connection pooler in front of the database works in transaction mode, and the "
            "gateway needs session mode: it prepares statements and has settings for each session."
        )


def _server_process(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
