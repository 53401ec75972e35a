"""Tests a machine without free descriptors, with a full disk or with a damaged page on its disk."""

import asyncio
import contextlib
import resource
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psycopg
import pytest

from tests.support.data_folders import data_folder
from tests.support.gateway import assert_error
from tests.support.gateway_processes import installed_program
from tests.support.postgres_server import PostgresServer
from tests.support.scripted_gateway import ScriptedGateway, chat_body, scripted_gateway
from tests.support.upstream import Upstream, chat
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.migrations import migrate

pytestmark = pytest.mark.slow

_PATIENCE_S = 60
_ADMIN_KEYS = "/v1/organization/admin_api_keys"


async def test_a_worker_without_descriptors_refuses_and_recovers(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    """P4: New connections without a descriptor are closed, and existing connections are answered."""
    async with (
        Upstream(chat()) as upstream,
        installed_program(tmp_path, data_dir, conninfo, upstream, compiled) as installed,
        installed.serving() as (running, scripted),
    ):
        assert (await scripted.chat()).status_code == 200
        (worker,) = running.workers()
        _, hard = worker.rlimit(resource.RLIMIT_NOFILE)
        worker.rlimit(resource.RLIMIT_NOFILE, (worker.num_fds() + 16, hard))
        address = urlsplit(running.public)
        with contextlib.ExitStack() as sockets:
            crowd = [
                sockets.enter_context(socket.create_connection((address.hostname, address.port)))
                for _ in range(200)
            ]
            closed = await asyncio.to_thread(_count_closed, crowd)
            assert closed >= 200 - 16
            # A client that was connected before is answered.
            listed = await scripted.gateway.client.get(
                _ADMIN_KEYS, headers=scripted.tenant.as_admin
            )
            assert listed.status_code == 200
        async with asyncio.timeout(_PATIENCE_S), scripted.another_client() as newcomer:
            while not await _is_answered(newcomer):  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.1)
        assert running.workers() == [worker]
        assert (await scripted.balance())["held"] == 0


def _count_closed(crowd: list[socket.socket]) -> int:
    """Counts the connections that the server has closed. It sends nothing on connections that it accepts."""
    closed = 0
    for member in crowd:
        member.settimeout(0.5 if closed < 200 - 16 else 0.01)
        try:
            closed += member.recv(1) == b""
        except ConnectionError:
            closed += 1
        except TimeoutError:
            continue
    return closed


async def _is_answered(scripted: ScriptedGateway) -> bool:
    try:
        return (await scripted.chat()).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def place() -> Iterator[Path]:
    with data_folder() as folder:
        yield folder


@contextlib.asynccontextmanager
async def _gateway_on(server: PostgresServer, data_dir: Path) -> AsyncIterator[ScriptedGateway]:
    migrate(server.conninfo)
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(
            data_dir,
            server.conninfo,
            upstream,
            limits={"inference_deadline_s": 3},
            changed_constants={"setup.services.Database": {"pool_timeout_s": 1}},
        ) as running,
    ):
        yield running


async def _works_again(scripted: ScriptedGateway) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            answer = await scripted.chat()
            if answer.status_code == 200:
                break
            assert_error(answer, answer.status_code, answer.json()["error"]["code"])
            await asyncio.sleep(0.2)
        while True:
            with contextlib.suppress(Unavailable):
                if (await scripted.balance())["held"] == 0:
                    break
            await asyncio.sleep(0.2)


async def test_a_page_that_is_not_what_was_written(place: Path, data_dir: Path) -> None:
    """B11: Calls that need the damaged page get a 503, and no value is read from that page."""
    server = PostgresServer(place / "server")
    server.initialise()
    server.start()
    assert server.query("SHOW data_checksums") == [("on",)]
    try:
        async with _gateway_on(server, data_dir) as scripted:
            assert (await scripted.chat()).status_code == 200
            before = await scripted.balance()
            ((path,),) = server.query("SELECT pg_relation_filepath('accounts')")
            table = server.folder / str(path)
            await asyncio.to_thread(_flip, server, table)
            calls = len(scripted.upstream.requests)
            with pytest.raises(psycopg.Error, match="invalid page"):
                server.query("SELECT * FROM accounts")
            await _reads_again(scripted)
            for stream in (False, True):
                answer = await scripted.chat(stream=stream)
                assert_error(answer, 503, "service_unavailable")
                for word in ("checksum", "page", "accounts", "block"):
                    assert word not in answer.text
            assert len(scripted.upstream.requests) == calls
            await asyncio.to_thread(_flip, server, table)
            await _works_again(scripted)
            after = await scripted.balance()
            assert (after["granted"], after["unsettled"]) == (before["granted"], 0)
            assert after["settled"] > before["settled"]
    finally:
        server.stop("immediate")


async def _reads_again(scripted: ScriptedGateway) -> None:
    """Waits until a read succeeds. Connections from before a restart are found dead only when used."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            listed = await scripted.gateway.client.get(
                _ADMIN_KEYS, headers=scripted.tenant.as_admin
            )
            if listed.status_code == 200:
                return
            await asyncio.sleep(0.1)


def _flip(server: PostgresServer, table: Path) -> None:
    """Flips one bit in the rows of the first page. A second call flips it back."""
    server.stop()
    written = bytearray(table.read_bytes())
    written[8192 - 40] ^= 1
    with table.open("r+b") as file:
        file.write(written)
    server.start()


@contextlib.contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mounts a file system in memory. Skips the test if mounting is not possible."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "tmpfs", str(folder)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_disk_that_is_full(place: Path, data_dir: Path) -> None:
    """B6: Calls are refused, reads succeed, and the gateway recovers as soon as there is free space."""
    with _small_disk(place / "disk", 256) as disk:
        server = PostgresServer(disk / "server")
        server.initialise()
        server.configure(max_wal_size="64MB", min_wal_size="32MB", autovacuum="off")
        server.start()
        try:
            async with _gateway_on(server, data_dir) as scripted:
                assert (await scripted.chat()).status_code == 200
                filler = disk / "filler"
                await asyncio.to_thread(_fill, filler)
                refused = await _first_refusal(scripted)
                assert_error(refused, 503, "service_unavailable")
                with pytest.raises(psycopg.errors.DiskFull):
                    server.query("SELECT lo_from_bytea(0, decode(repeat('00', 1 << 20), 'hex'))")
                listed = await scripted.gateway.client.get(
                    _ADMIN_KEYS, headers=scripted.tenant.as_admin
                )
                assert listed.status_code == 200
                filler.unlink()
                await _works_again(scripted)
                entries = await scripted.entries()
                assert {entry.status for entry in entries} == {"settled"}
        finally:
            server.stop("immediate")


async def test_a_temporary_folder_that_is_full(
    place: Path, tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    """B6: Calls are answered, although the workers can store no further metrics, and so are the calls of
    a worker that is started meanwhile."""
    with _small_disk(place / "temporary", 8) as folder:
        environment = {**compiled, "TMPDIR": str(folder)}
        async with (
            Upstream(chat()) as upstream,
            installed_program(tmp_path, data_dir, conninfo, upstream, environment) as installed,
            installed.serving() as (running, scripted),
        ):
            await asyncio.to_thread(_fill, folder / "filler")
            (worker,) = running.workers()
            for _ in range(10):
                assert (await scripted.chat()).status_code == 200
                # The metrics are written every half second.
                await asyncio.sleep(0.2)
            assert running.workers() == [worker]
            worker.kill()
            async with asyncio.timeout(_PATIENCE_S), scripted.another_client() as newcomer:
                while not await _is_answered(newcomer):  # noqa: ASYNC110 - no event exists
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            assert (await scripted.chat()).status_code == 200
            metrics = await asyncio.to_thread(httpx2.get, f"{running.operator}/metrics")
            assert metrics.status_code == 200


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


async def _first_refusal(scripted: ScriptedGateway) -> httpx2.Response:
    body, headers = chat_body(), scripted.tenant.as_customer
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            answers = await asyncio.gather(
                *(
                    scripted.gateway.client.post("/v1/chat/completions", json=body, headers=headers)
                    for _ in range(20)
                )
            )
            for answer in answers:
                if answer.status_code != 200:
                    return answer
