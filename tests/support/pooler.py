"""Runs a real PgBouncer in front of a database."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
from bench.ports import free_port
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.journeys.clients.debian import debian_program
from tests.support.data_folders import data_folder
from tollkeeper.setup.embedded.postgres_account import ensure_account

_START_WITHIN_S = 20
_CONFIG = """
[databases]
{dbname} = host={host} port={port} dbname={dbname} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 20
{more}
"""


@contextmanager
def pooler(
    conninfo: str, mode: Literal["session", "transaction"], *, more: str = ""
) -> Iterator[str]:
    """Yields the address of the same database through the pooler."""
    with data_folder() as folder:
        yield from _running(folder, conninfo, mode, more)


def _running(folder: Path, conninfo: str, mode: str, more: str) -> Iterator[str]:
    parts = conninfo_to_dict(conninfo)
    port = free_port()
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    config.write_text(
        _CONFIG.format(
            host=parts["host"],
            port=parts.get("port") or 5432,
            dbname=parts["dbname"],
            user=parts["user"],
            listen_port=port,
            mode=mode,
            more=more,
        )
    )
    bouncer = debian_program("pgbouncer", "usr/sbin/pgbouncer", "libc-ares2", "libevent-2.1-7")
    # PgBouncer refuses to run as root, and only PostgreSQL's account can reach the socket. That
    # account may not be able to enter the checkout, so the program is copied.
    program = Path(shutil.copy(bouncer.program, folder))
    libraries = [
        shutil.copy(library, folder)
        for place in bouncer.environment.values()
        for library in Path(place).glob("lib*.so.*")
    ]
    account = ensure_account() if os.geteuid() == 0 else None
    with subprocess.Popen(
        [program, "--quiet", str(config)],
        env={**os.environ, **({"LD_LIBRARY_PATH": str(folder)} if libraries else {})},
        cwd="/",
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else [],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        address = make_conninfo(host="127.0.0.1", port=port, user="any", dbname=parts["dbname"])
        try:
            _wait_until_it_answers(address)
            yield address
        finally:
            process.kill()


def _wait_until_it_answers(address: str) -> None:
    until = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
