"""Runs two gateways and their clients through a failover of the database."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, Serving
from tests.support.scripted_gateway import ScriptedGateway, chat_body
from tests.support.upstream import Upstream, chat

_CALLERS = 8
# Longer than a gateway waits for the database with a call.
_TIMEOUT_S = 120


@asynccontextmanager
async def two_gateways(
    folder: Path, compiled: dict[str, str], url: str
) -> AsyncIterator[tuple[InstalledProgram, list[tuple[Serving, ScriptedGateway]]]]:
    async with (
        Upstream(chat()) as upstream,
        installed_program(
            folder,
            folder,
            url,
            upstream,
            compiled,
            changed_constants={"database.processes.LEASE_S": 1},
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
                "/v1/chat/completions",
                json=chat_body(max_tokens=1),
                headers=self._headers,
                timeout=_TIMEOUT_S,
            )
            self.statuses.add(found.status_code)
            if found.status_code == 200:
                self.acknowledged.append(found.headers["x-request-id"])
                self._news.set()
            else:
                assert "error" in found.json()
                await asyncio.sleep(0.05)

    async def until_acknowledged(self, count: int, *, within_s: float = 60) -> None:
        target = len(self.acknowledged) + count
        async with asyncio.timeout(within_s):
            while len(self.acknowledged) < target:
                self._news.clear()
                await self._news.wait()


def settled(server: PostgresServer) -> set[str]:
    rows = server.query("SELECT reservation_id FROM resolutions WHERE kind = 'settled'")
    return {str(row[0]) for row in rows}


def compare_logs(program: Program, server: PostgresServer, logs: list[str], lost: set[str]) -> None:
    """Checks that the logs of both gateways contain the lost calls, and that they are booked only once."""
    line = ("ledger", "compare-log", *logs, "--json")
    found = json.loads(program.run(*line).out)
    assert found["unreadable_lines"] == 0, found
    assert {one["request_id"] for one in found["differences"]} == lost
    before = settled(server)
    booked = program.json("ledger", "compare-log", *logs, "--book")
    assert booked["booked"] == len(lost)
    assert settled(server) - before == lost
    again = program.json("ledger", "compare-log", *logs, "--book")
    assert (again["booked"], again["differences"]) == (0, [])
