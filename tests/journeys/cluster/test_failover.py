"""Tests that the database's primary fails and its standby takes over while gateways serve calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.data_folders import data_folder
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, Serving
from tests.support.scripted_gateway import ScriptedGateway, chat_body
from tests.support.upstream import Upstream, chat
from tollkeeper.storage.migrations import migrate

pytestmark = pytest.mark.slow

_CALLERS = 8
# Error statuses after which clients retry.
_REFUSALS = {500, 502, 503, 504}
_NO_DIFFERENCE = {"ok": True, "differences": []}
_HAS_RESERVATION = "every call that may have been charged has its reservation"


@contextmanager
def primary_with_standby(
    folder: Path, *, synchronous: bool
) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    primary = PostgresServer(folder / "primary")
    primary.initialise()
    primary.start()
    migrate(primary.conninfo)
    standby = primary.standby(folder / "standby", "standby")
    if synchronous:
        primary.configure(synchronous_standby_names="standby")
        primary.reload()
    try:
        yield primary, standby
    finally:
        for server in (standby, primary):
            server.stop("immediate")


@asynccontextmanager
async def two_gateways(
    folder: Path, compiled: dict[str, str], *servers: PostgresServer
) -> AsyncIterator[tuple[InstalledProgram, list[tuple[Serving, ScriptedGateway]]]]:
    """Starts two gateways that know all these servers."""
    hosts = ",".join(server.address for server in servers)
    url = f"postgresql://postgres@{hosts}/postgres"
    async with (
        Upstream(chat()) as upstream,
        installed_program(
            folder,
            folder,
            url,
            upstream,
            compiled,
            changed_constants={"storage.processes.LEASE_S": 1},
        ) as installed,
        AsyncExitStack() as gateways,
    ):
        yield (
            installed,
            [await gateways.enter_async_context(installed.serving()) for _ in range(2)],
        )


class Callers:
    """Clients that call throughout a failover, and record which calls were acknowledged."""

    def __init__(self, gateways: list[ScriptedGateway]) -> None:
        self._clients = [gateway.gateway.client for gateway in gateways]
        self._headers = gateways[0].tenant.as_customer
        self._stopping = False
        self._news = asyncio.Event()
        self.acknowledged: list[str] = []
        self.statuses: set[int] = set()

    async def run(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(_CALLERS)))

    def stop(self) -> None:
        self._stopping = True

    async def _call(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        while not self._stopping:
            found = await client.post(
                "/v1/chat/completions", json=chat_body(max_tokens=1), headers=self._headers
            )
            self.statuses.add(found.status_code)
            if found.status_code == 200:
                self.acknowledged.append(found.headers["x-request-id"])
                self._news.set()
            else:
                assert "error" in found.json()
                await asyncio.sleep(0.05)

    async def until_acknowledged(self, count: int) -> None:
        target = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < target:
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_standby_takes_over(synchronous: bool, compiled: dict[str, str]) -> None:
    """With a synchronous standby, no acknowledged settlement is lost. With an asynchronous standby, the
    last calls can be missing as a whole, but the ledger is consistent. `compare-log` finds the missing
    calls in the request logs, and books exactly these calls once."""
    with (
        data_folder() as folder,
        primary_with_standby(folder, synchronous=synchronous) as (primary, standby),
    ):
        async with two_gateways(folder, compiled, primary, standby) as (installed, served):
            callers = Callers([gateway for _, gateway in served])
            calling = asyncio.create_task(callers.run())
            await callers.until_acknowledged(40)
            if not synchronous:
                await asyncio.to_thread(standby.leave_primary)
                await callers.until_acknowledged(40)
            await asyncio.to_thread(primary.stop, "immediate")
            before = set(callers.acknowledged)
            await asyncio.to_thread(standby.promote)
            await callers.until_acknowledged(40)
            callers.stop()
            await calling
            assert callers.statuses - {200} <= _REFUSALS
        lost = set(callers.acknowledged) - _settled(standby)
        program = replace(installed.program, warm=True)
        # A hold may have reached the standby without its settlement. Recovery finds such holds.
        await asyncio.to_thread(program.json, "ledger", "recover")
        verified = await asyncio.to_thread(program.run, "ledger", "verify", "--json")
        differences = json.loads(verified.out)["differences"]
        if synchronous:
            assert lost == set()
            assert differences == []
        else:
            # All calls that were acknowledged after the failover exist.
            assert lost
            assert lost <= before
            # Activity records are written a little later than the ledger. The records of the last
            # calls may be written after the failover, although their reservations are lost.
            assert {one["invariant"] for one in differences} <= {_HAS_RESERVATION}
            assert {one["subject"] for one in differences} <= lost
        logs = [str(serving.log) for serving, _ in served]
        await asyncio.to_thread(_compare_logs, program, standby, logs, lost)
        assert set(callers.acknowledged) <= _settled(standby)
        assert await asyncio.to_thread(program.json, "ledger", "verify") == _NO_DIFFERENCE


def _settled(server: PostgresServer) -> set[str]:
    rows = server.query("SELECT reservation_id FROM resolutions WHERE kind = 'settled'")
    return {str(row[0]) for row in rows}


def _compare_logs(
    program: Program, server: PostgresServer, logs: list[str], lost: set[str]
) -> None:
    """Checks that the logs of both gateways contain the lost calls, and that they are booked only once."""
    line = ("ledger", "compare-log", *logs, "--json")
    found = json.loads(program.run(*line).out)
    assert found["unreadable_lines"] == 0, found
    assert {one["request_id"] for one in found["differences"]} == lost
    before = _settled(server)
    booked = program.json("ledger", "compare-log", *logs, "--book")
    assert booked["booked"] == len(lost)
    assert _settled(server) - before == lost
    again = program.json("ledger", "compare-log", *logs, "--book")
    assert (again["booked"], again["differences"]) == (0, [])
