"""Defines the session settings of every database connection, and checks that they stay in effect.

A pooler between the gateway and PostgreSQL may drop session settings, or give the session to
another client between two transactions. Both could lose money without an error, so the gateway
refuses to start behind such a pooler.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tollkeeper.domain.errors import StateConflict

_CONNECT_TIMEOUT_S = 5
_DEFAULT_PORT = 5432
# The operating system closes a connection, even an idle one, if the server's machine does not
# respond for about 12 seconds. `tcp_user_timeout` is in milliseconds, the idle time and the
# interval are in seconds.
_KEEPALIVE: dict[str, int] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
# The values of `synchronous_commit` with which an acknowledged settlement is durable.
_DURABLE_COMMIT = ("on", "remote_write", "remote_apply")
# What the gateway's SQL and the driver rely on: how values are written and read, and where tables are
# found. All values are PostgreSQL's defaults, but a server, a database or a role can have others (`ALTER
# ROLE ... SET`).
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
# The allowed values of the other settings that `check_session` checks.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "synchronous_commit": _DURABLE_COMMIT,
    "transaction_isolation": ("read committed",),
    "client_encoding": ("UTF8",),
}


# A gateway connects every few seconds, always to the same address, so the results for it are cached.
@lru_cache(maxsize=16)
def session_conninfo(conninfo: str) -> str:
    """Adds the gateway's connection parameters to the address. The address may override the
    keepalive parameters and `target_session_attrs`."""
    parts = conninfo_to_dict(conninfo)
    parameters: dict[str, str | int] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": "tollkeeper",
        # The module `round_trips` sends and reads text in this encoding.
        "client_encoding": "utf8",
        **{name: parts.get(name) or value for name, value in _KEEPALIVE.items()},
    }
    if "," in str(parts.get("host") or parts.get("hostaddr") or ""):
        # If the address has several hosts, connect to the writable host (the primary).
        parameters["target_session_attrs"] = parts.get("target_session_attrs") or "read-write"
    return make_conninfo(conninfo, **parameters)


@lru_cache(maxsize=16)
def single_hosts(conninfo: str) -> tuple[tuple[str, str], ...]:
    """Returns one pair for each host in the address: the host's display name, and an address that
    contains only this host."""
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
    """Lists the hosts of the address with their ports. Omits all other parts of the address, such
    as passwords."""
    try:
        return ", ".join(shown for shown, _ in single_hosts(conninfo))
    except psycopg.ProgrammingError:
        return "an address that cannot be read"


def session_settings(statement_timeout_s: float) -> str:
    """Returns the statement that changes the settings of a new session. The settings are not sent
    as parameters of the connection, because poolers do not forward such parameters."""
    statement_ms = int(statement_timeout_s * 1000)
    settings = {
        "statement_timeout": statement_ms,
        "lock_timeout": statement_ms,
        "idle_in_transaction_session_timeout": 2 * statement_ms,
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        # The server ends sessions of a machine that no longer responds. By default it does so only
        # after hours.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return _set_all(CONVENTIONS | settings)


def session_conventions() -> str:
    """Returns the statement that a session needs before any other, if it does not get all
    `session_settings`."""
    return _set_all(CONVENTIONS)


def _set_all(settings: Mapping[str, object]) -> str:
    return "SELECT " + ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items()
    )


def check_session(connection: psycopg.Connection) -> None:
    """Raises a one-line error if a setting of the session is not in effect."""
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
    """Raises a one-line error if the session's server process changes between two transactions.

    A pooler in transaction mode gives the most recently used server process to the next client. So
    while the second connection keeps a transaction open in that process, the first connection gets
    a different process.
    """
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
