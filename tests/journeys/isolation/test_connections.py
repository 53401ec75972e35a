"""Tests that connections without a key, or of a hostile organization, leave room for other clients."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.program import Serving
from tests.support.raw_caller import RawCaller, raw_caller
from tests.support.scripted_gateway import ScriptedGateway, eventually
from tests.support.upstream import Upstream, chat, hang

# The limit of open files for each process. Without connections, a worker has about 40 open files.
_DESCRIPTORS = 256
# The highest number of client connections of a gateway that runs in the test's process.
_ROOM = 16
# As many requests as a connection keeps while they wait for their turn.
_SENT_AHEAD = b"GET /nothing HTTP/1.1\r\nHost: gateway\r\n\r\n" * 400


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    return {"changed_constants": {"entry.descriptors.CONNECTIONS_MAX": _ROOM}}


@asynccontextmanager
async def _limited(
    installed: InstalledProgram, limits: str
) -> AsyncIterator[tuple[Serving, ScriptedGateway]]:
    """Starts a gateway with another limit of open files, given as arguments of the shell's `ulimit`."""
    shell = ("sh", "-c", f'ulimit {limits}; exec "$@"', "sh")
    program = replace(installed.program, wrapper=shell)
    async with replace(installed, program=program).serving() as running:
        yield running


@pytest.fixture
async def installed(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> AsyncIterator[InstalledProgram]:
    async with (
        Upstream(chat()) as upstream,
        installed_program(tmp_path, data_dir, conninfo, upstream, compiled) as found,
    ):
        yield found


async def _readiness(running: Serving) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as client:
        return await client.get(f"{running.operator}/readyz")


@contextmanager
def _crowd(address: str, number: int, networks: int) -> Iterator[None]:
    """Opens idle connections from `networks` different source addresses."""
    target = urlsplit(address)
    with ExitStack() as sockets:
        for at in range(number):
            source = (f"127.0.1.{1 + at % networks}", 0)
            sockets.enter_context(
                socket.create_connection(
                    (target.hostname, target.port), timeout=20, source_address=source
                )
            )
        yield


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 100])
async def test_idle_connections_without_a_key_leave_room(
    installed: InstalledProgram, networks: int
) -> None:
    """There are three times as many connections as the worker has descriptors."""
    async with _limited(installed, f"-n {_DESCRIPTORS}") as (running, scripted):
        (worker,) = running.workers()
        crowd = _crowd(running.public, 3 * _DESCRIPTORS, networks)
        await asyncio.to_thread(crowd.__enter__)
        try:
            for _ in range(10):
                async with scripted.another_client() as newcomer:
                    assert (await newcomer.chat()).status_code == 200
            assert (await _readiness(running)).status_code == 200
            assert worker.num_fds() < 3 / 4 * _DESCRIPTORS
        finally:
            crowd.__exit__(None, None, None)


@pytest.mark.slow
async def test_the_soft_limit_becomes_the_hard_limit(installed: InstalledProgram) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with _limited(installed, "-S -n 128") as (running, _):
        for process in (psutil.Process(running.process.pid), *running.workers()):
            assert process.rlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.slow
async def test_a_gateway_that_has_nearly_no_descriptors_is_not_ready(
    installed: InstalledProgram,
) -> None:
    async with installed.serving() as (running, scripted):
        assert (await scripted.chat()).status_code == 200
        (worker,) = running.workers()
        before = worker.rlimit(resource.RLIMIT_NOFILE)
        assert (await _readiness(running)).status_code == 200
        worker.rlimit(resource.RLIMIT_NOFILE, (worker.num_fds() + 1, before[1]))
        exhausted = await _readiness(running)
        assert exhausted.status_code == 503
        assert "nearly exhausted" in exhausted.json()["descriptors"]
        worker.rlimit(resource.RLIMIT_NOFILE, before)
        ready = await _readiness(running)
        assert ready.status_code == 200
        assert ready.json()["descriptors"].startswith("a worker uses ")


@pytest.mark.slow
async def test_doctor_warns_of_a_limit_that_is_too_low(installed: InstalledProgram) -> None:
    line = installed.program.line("doctor", "--json")
    for limit, verdict, connections in ((_DESCRIPTORS, "warning", 128), (20_000, "ok", 10_000)):
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *line),
            cwd=installed.program.folder,
            env=installed.program.process_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        (found,) = [check for check in json.loads(out)["data"] if check["name"] == "open files"]
        assert found["verdict"] == verdict
        assert f"{connections} connections" in found["detail"]


@pytest.mark.parametrize("sent", [1.0, 0.5], ids=["idle", "half a body"])
async def test_one_organization_does_not_keep_others_out(
    scripted: ScriptedGateway, sent: float
) -> None:
    """One organization opens more connections than the gateway allows, each with a valid key."""
    quiet = await scripted.with_tenant()
    async with AsyncExitStack() as stack:
        for _ in range(2 * _ROOM):
            caller = await stack.enter_async_context(raw_caller(scripted))
            await caller.ask(sent=sent)
            if sent == 1:
                await caller.answer()
        await asyncio.sleep(0.1)
        for _ in range(10):
            async with quiet.another_client() as newcomer:
                assert (await newcomer.chat()).status_code == 200


async def test_requests_that_wait_for_their_turn_do_not_keep_others_out(
    scripted: ScriptedGateway,
) -> None:
    """One organization uses all connections, and has sent many requests ahead on each."""
    quiet = await scripted.with_tenant()
    async with AsyncExitStack() as stack:
        callers = []
        for _ in range(_ROOM):
            callers.append(await stack.enter_async_context(raw_caller(scripted)))
            await callers[-1].ask()
            await callers[-1].answer()
        for caller in callers:
            await caller.send(_SENT_AHEAD)
        async with quiet.another_client() as newcomer:
            assert (await newcomer.chat()).status_code == 200


async def test_a_body_that_makes_way_is_refused_in_the_envelope(scripted: ScriptedGateway) -> None:
    async with AsyncExitStack() as stack:
        callers = [await _waiting(stack, scripted) for _ in range(2 * _ROOM)]
        refused = json.loads(await callers[0].answer())
        assert refused["error"]["code"] == "service_unavailable"


async def _waiting(stack: AsyncExitStack, scripted: ScriptedGateway) -> RawCaller:
    caller = await stack.enter_async_context(raw_caller(scripted))
    await caller.ask(sent=0.5)
    await asyncio.sleep(0.02)
    return caller


async def test_a_new_connection_is_refused_if_all_others_are_in_use(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(hang())
    async with AsyncExitStack() as stack:
        for at in range(_ROOM):
            caller = await stack.enter_async_context(raw_caller(scripted))
            await caller.ask()
            await eventually(partial(_is_called, scripted, at + 1))
        newcomer = await stack.enter_async_context(raw_caller(scripted))
        refused = json.loads(await newcomer.answer())
        assert refused["error"]["code"] == "service_unavailable"


def _is_called(scripted: ScriptedGateway, times: int) -> bool:
    return scripted.upstream.under_way == times
