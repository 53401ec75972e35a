"""Tests that /readyz agrees with the results of calls, for several faults of the database."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from bench.ports import free_port
from psycopg.conninfo import make_conninfo

from tests.support.data_folders import data_folder
from tests.support.gateway import assert_error
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.paused_answer import PausedAnswer
from tests.support.postgres_server import PostgresServer
from tests.support.program import Serving
from tests.support.scripted_gateway import ScriptedGateway, eventually
from tests.support.upstream import Upstream, chat
from tollkeeper.database.migrations import migrate

pytestmark = pytest.mark.slow

# How soon /readyz has to agree with calls, in seconds.
_WITHIN_S = 15.0
# Mount options for the disk that a test fills. The folders of a new server need about 60 MB.
_DISK = "size=160m,mode=0711"


@dataclass
class Drill:
    """One gateway and a PostgreSQL server that a test may break."""

    postgres: PostgresServer
    installed: InstalledProgram
    running: Serving
    scripted: ScriptedGateway

    async def ready(self) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=30) as client:
            return await client.get(f"{self.running.operator}/readyz")

    async def until(self, status: int) -> dict[str, Any]:
        """Waits until /readyz has this status, and returns its body."""
        deadline = asyncio.get_running_loop().time() + _WITHIN_S
        while (found := await self.ready()).status_code != status:
            assert asyncio.get_running_loop().time() < deadline, found.json()
            await asyncio.sleep(0.1)
        return dict(found.json())

    async def signals(self) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Returns the metrics of readiness by name, and the alerts."""
        async with httpx2.AsyncClient(timeout=30) as client:
            metrics = (await client.get(f"{self.running.operator}/metrics")).text
        names = ("ready", "database_reachable", "database_writable")
        lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
        shown = {name: float(lines[f"tollkeeper_{name}"]) for name in names}
        listed = await asyncio.to_thread(self.installed.program.json, "alert", "list")
        return shown, listed["data"]

    async def until_signalled(self, *expected: float, kinds: list[str]) -> list[dict[str, Any]]:
        """Waits for these metrics (ready, reachable, writable) and these alerts."""
        async with asyncio.timeout(60):
            while True:
                shown, alerts = await self.signals()
                if (*shown.values(),) == expected and [one["kind"] for one in alerts] == kinds:
                    return alerts

    async def stays(self, status: int, *, for_s: float) -> None:
        """Checks the status of /readyz repeatedly, without any call in between."""
        deadline = asyncio.get_running_loop().time() + for_s
        while asyncio.get_running_loop().time() < deadline:
            found = await self.ready()
            assert found.status_code == status, found.json()
            await asyncio.sleep(0.25)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mounts a small disk in memory, which is quickly full. Skips the test if mounting is not permitted."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this process may not mount a disk: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def running_postgres(folder: Path) -> Iterator[PostgresServer]:
    postgres = PostgresServer(folder / "postgres")
    postgres.initialise()
    postgres.configure(max_wal_size="64MB", min_wal_size="32MB")
    postgres.start()
    try:
        # Like in production, the gateway's role owns its database and is no superuser.
        _execute(postgres, "CREATE ROLE gateway LOGIN", "ALTER DATABASE postgres OWNER TO gateway")
        migrate(make_conninfo(postgres.conninfo, user="gateway"))
        yield postgres
    finally:
        postgres.stop("immediate")


@pytest.fixture
async def drill(request: pytest.FixtureRequest, compiled: dict[str, str]) -> AsyncIterator[Drill]:
    with data_folder() as folder:
        disk = small_disk if getattr(request, "param", "") == "small disk" else _same_folder
        with disk(folder) as place, running_postgres(place) as postgres:
            # Nothing listens at the second host. Calls wait for a connection up to the timeout.
            hosts = f"{postgres.address},127.0.0.1:1"
            url = f"postgresql://gateway:secret@{hosts}/postgres?target_session_attrs=any"
            async with (
                Upstream(chat()) as upstream,
                installed_program(
                    *(folder, folder, url, upstream, compiled),
                    changed_constants={"setup.services.Database": {"pool_timeout_s": 60}},
                ) as installed,
            ):
                # Commands query the gateway at its operator port, so they need to know the port.
                port = str(free_port())
                program = installed.program.with_environment(TOLLKEEPER_OPERATOR__PORT=port)
                findable = replace(installed, program=program)
                async with findable.serving() as (running, scripted):
                    yield Drill(postgres, findable, running, scripted)


@contextmanager
def _same_folder(folder: Path) -> Iterator[Path]:
    yield folder


def _execute(postgres: PostgresServer, *statements: str) -> None:
    """Executes the statements as the superuser, even if the server is read-only."""
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(postgres.conninfo, autocommit=True, options=options) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def test_a_read_only_database_is_not_ready(drill: Drill) -> None:
    """/readyz shows it even without calls, although only a write can detect it."""
    assert (await drill.scripted.chat()).status_code == 200
    await drill.until(200)
    change = "ALTER SYSTEM {} default_transaction_read_only {}"
    reload = "SELECT pg_reload_conf()"
    _execute(drill.postgres, change.format("SET", "= on"), reload)
    said = await drill.until(503)
    assert said["status"] == "not ready"
    assert "read-only" in said["holds"]
    assert_error(await drill.scripted.chat(), 503, "service_unavailable")
    await drill.stays(503, for_s=5)
    doctor = await asyncio.to_thread(drill.installed.program.run, "doctor")
    assert doctor.code == 1
    assert "read-only" in doctor.out
    # Reads still work.
    (alert,) = await drill.until_signalled(0, 1, 0, kinds=["database_not_writable"])
    assert "read-only" in alert["detail"]
    _execute(drill.postgres, change.format("RESET", ""), reload)
    await drill.until(200)
    assert (await drill.scripted.chat()).status_code == 200


@pytest.mark.parametrize("drill", ["small disk"], indirect=True)
async def test_a_full_disk_is_not_ready(drill: Drill) -> None:
    assert (await drill.scripted.chat()).status_code == 200
    await drill.until(200)
    filler = drill.postgres.folder.parent / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    # The tables' last pages still have space for a few holds.
    async with asyncio.timeout(60):
        while (found := await drill.scripted.chat(max_tokens=1)).status_code == 200:
            assert (await drill.ready()).status_code in (200, 503)
    assert_error(found, 503, "service_unavailable")
    said = await drill.until(503)
    assert "No space left" in said["holds"]
    await drill.stays(503, for_s=5)
    filler.unlink()
    await drill.until(200)
    assert (await drill.scripted.chat()).status_code == 200


async def test_a_clock_in_a_closed_month_is_not_ready(drill: Drill) -> None:
    assert (await drill.scripted.chat()).status_code == 200
    await drill.until(200)
    month = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMM')::integer"
    _execute(
        drill.postgres,
        "INSERT INTO ledger_closes (month, reservations, digest) "
        f"VALUES ({month}, 0, decode(repeat('00', 32), 'hex'))",
        f"SELECT ledger_seal_month({month})",
    )
    said = await drill.until(503)
    assert "clock" in said["holds"]
    assert_error(await drill.scripted.chat(), 503, "service_unavailable")
    await drill.stays(503, for_s=5)


@pytest.mark.smoke
async def test_a_gateway_that_drains_says_so(drill: Drill) -> None:
    paused = PausedAnswer()
    drill.scripted.upstream.play(paused.verb())
    call = asyncio.ensure_future(drill.scripted.chat(stream=True))
    await eventually(lambda: drill.scripted.upstream.under_way == 1)
    await drill.until(200)
    drill.running.process.send_signal(signal.SIGTERM)
    assert (await drill.until(503))["status"] == "stopping"
    paused.may_end.set()
    assert (await call).status_code == 200


async def test_a_stopped_database_is_said_quickly_by_all_its_hosts(drill: Drill) -> None:
    """Calls fail quickly. A call that waits for a connection would take a minute."""
    assert (await drill.scripted.chat()).status_code == 200
    await asyncio.to_thread(drill.postgres.stop, "immediate")
    async with asyncio.timeout(20):
        # The first call may get a connection that has just died.
        await drill.until(503)
        for _ in range(5):
            found = await drill.scripted.chat()
            assert_error(found, 503, "service_unavailable")
        assert "cannot be reached" in found.json()["error"]["message"]
        assert "127.0.0.1" not in found.text
    hosts = f"{drill.postgres.address}, 127.0.0.1:1"
    said = await drill.until(503)
    assert f"cannot be reached at {hosts}" in said["database"]
    # A write that was running when the server stopped can fail after the first refused connection.
    async with asyncio.timeout(_WITHIN_S):
        while f"cannot be reached at {hosts}" not in said["holds"]:
            await asyncio.sleep(0.1)
            said = await drill.until(503)
    doctor = await asyncio.to_thread(drill.installed.program.run, "doctor")
    assert f"cannot be reached at {hosts}" in doctor.out
    (alert,) = await drill.until_signalled(0, 0, 0, kinds=["database_unreachable"])
    assert hosts in alert["detail"]
    assert alert["subject"] == {"gateway": socket.gethostname()}
    await asyncio.to_thread(drill.postgres.start)
    await drill.until(200)
    await drill.until_signalled(1, 1, 1, kinds=[])
    assert (await drill.scripted.chat()).status_code == 200
    doctor = await asyncio.to_thread(drill.installed.program.run, "doctor")
    assert f"{hosts}, durable" in doctor.out


async def test_a_refused_new_connection_is_only_a_warning(drill: Drill) -> None:
    """Calls use the gateway's open connections, so a balancer must not take the gateway out."""
    assert (await drill.scripted.chat()).status_code == 200
    await drill.until(200)
    postgres = drill.postgres
    _execute(postgres, "ALTER ROLE gateway CONNECTION LIMIT 0")
    (alert,) = await drill.until_signalled(1, 0, 1, kinds=["database_refuses_connections"])
    assert "too many connections for role" in alert["detail"]
    said = await drill.until(200)
    assert said["status"] == "ready"
    assert said["database"].startswith("warning: no new connection: ")
    assert (await drill.scripted.chat()).status_code == 200
    # Without calls too, and longer than a worker's last hold counts.
    await drill.stays(200, for_s=9)
    assert (await drill.scripted.chat()).status_code == 200
    _execute(postgres, "ALTER ROLE gateway CONNECTION LIMIT -1")
    await drill.until_signalled(1, 1, 1, kinds=[])
    # Without open connections, a refused connection is an outage.
    _execute(postgres, "ALTER ROLE gateway CONNECTION LIMIT 0")
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gateway'"
    _execute(postgres, ended)
    await drill.until(503)
    assert_error(await drill.scripted.chat(), 503, "service_unavailable")
    await drill.until_signalled(0, 0, 0, kinds=["database_unreachable"])


async def test_a_locked_table_is_not_ready_and_a_locked_row_is(drill: Drill) -> None:
    """A lock on a table stops every call, a lock on a row only those of one organization."""
    assert (await drill.scripted.chat()).status_code == 200
    await drill.until(200)
    connecting = psycopg.AsyncConnection.connect(drill.postgres.conninfo)
    async with await connecting as blocker:
        await blocker.execute("SELECT FROM accounts FOR UPDATE")
        await drill.stays(200, for_s=9)
        await blocker.rollback()
        await blocker.execute("LOCK TABLE accounts IN SHARE MODE")
        said = await drill.until(503)
        assert "locked" in said["holds"]
        assert_error(await drill.scripted.chat(), 503, "service_unavailable")
        await drill.until_signalled(0, 1, 0, kinds=["database_not_writable"])
        await drill.stays(503, for_s=5)
        await blocker.rollback()
    await drill.until(200)
    assert (await drill.scripted.chat()).status_code == 200


async def test_a_probe_leaves_nothing_in_the_books(drill: Drill) -> None:
    """Without any call, the gateway has tried several holds as probes, and none of them left a reservation."""
    await drill.until(200)
    await drill.stays(200, for_s=6)
    assert drill.postgres.query("SELECT count(*) FROM reservations") == [(0,)]
    verified = await asyncio.to_thread(drill.installed.program.json, "ledger", "verify")
    assert verified["ok"]
