"""Tests that acknowledged calls are still in the ledger after PostgreSQL was killed under load."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.data_folders import cluster_of, data_folder
from tests.support.ledger import (
    LedgerTenant,
    Process,
    balance_of,
    differences,
    hold_of,
    make_tenant,
    release,
    rows,
    running_process,
    settlement,
)
from tests.support.proof import Proof
from tollkeeper.core.errors import TollkeeperError, Unavailable
from tollkeeper.database.migrations import migrate
from tollkeeper.money.holds.values import Hold
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow

CALLERS = 12
# A killed server cannot start again until its last child process has ended.
RESTART_TRIES = 20
_RECONNECTED_WITHIN_S = 20


@dataclass
class Server:
    data_dir: Path
    embedded: EmbeddedPostgres

    @property
    def conninfo(self) -> str:
        return self.embedded.conninfo

    def kill(self, how: signal.Signals) -> None:
        """Ends the server like a crash of the server or of its machine: it writes nothing any more."""
        pid = (cluster_of(self.data_dir) / "postmaster.pid").read_text().partition("\n")[0]
        os.kill(int(pid), how)

    async def start_again(self) -> None:
        for _ in range(RESTART_TRIES):
            try:
                await asyncio.to_thread(self.embedded.ensure_running)
            except TollkeeperError:
                await asyncio.sleep(0.2)
            else:
                return
        raise AssertionError("the database did not start again")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Starts a separate server, because other tests need the shared server."""
    with data_folder() as data_dir, EmbeddedPostgres(data_dir) as embedded:
        migrate(embedded.conninfo)
        yield Server(data_dir, embedded)


@dataclass
class Acknowledged:
    """The results that the ledger has acknowledged."""

    settled: dict[UUID, int] = field(default_factory=dict)
    released: set[UUID] = field(default_factory=set)
    unsettled: set[UUID] = field(default_factory=set)
    turned_away: set[UUID] = field(default_factory=set)


async def caller(
    process: Process,
    tenant: LedgerTenant,
    rng: random.Random,
    acknowledged: Acknowledged,
    over: asyncio.Event,
) -> None:
    """Makes calls one after the other until `over` is set."""
    while not over.is_set():
        hold = hold_of(tenant, 10)
        try:
            decision = await process.ledger.hold(hold)
        except TollkeeperError:
            acknowledged.turned_away.add(hold.id)
            await asyncio.sleep(0.01)
            continue
        assert decision.refusal is None, decision
        await asyncio.sleep(rng.random() * 0.05)
        await end(process, hold, rng, acknowledged)


async def end(process: Process, hold: Hold, rng: random.Random, acknowledged: Acknowledged) -> None:
    match rng.randrange(4):
        case 0:
            await process.ledger.resolve(release(hold), hold)
            acknowledged.released.add(hold.id)
        case 1:
            await process.ledger.mark_unsettled(hold, "nobody knows")
            acknowledged.unsettled.add(hold.id)
        case _:
            cost = rng.randrange(1, 14)
            await process.ledger.resolve(settlement(hold, cost), hold)
            acknowledged.settled[hold.id] = cost


async def check_kill(server: Server, seed: int) -> tuple[int, int]:
    """Kills the server under load, and checks the ledger. Returns the number of acknowledged calls and
    the number of lost holds that the ledger restored."""
    rng = random.Random(seed)
    acknowledged = Acknowledged()
    over = asyncio.Event()
    async with running_process(server.conninfo) as process:
        tenant = await make_tenant(process.database, credit=10**9)
        callers = [
            asyncio.ensure_future(caller(process, tenant, rng, acknowledged, over))
            for _ in range(CALLERS)
        ]
        await asyncio.sleep(0.2 + rng.random() * 0.3)
        server.kill(rng.choice((signal.SIGKILL, signal.SIGQUIT)))
        await server.start_again()
        await asyncio.sleep(0.2)
        over.set()
        await asyncio.gather(*callers)
        assert await process.ledger.drain()
        await reconnected(process)
        await check_acknowledged(process, tenant, acknowledged)
        restored = await rows(
            process.database,
            "SELECT id FROM reservations WHERE organization_id = %s AND hold = 0",
            tenant.organization_id,
        )
    endings = (acknowledged.settled, acknowledged.released, acknowledged.unsettled)
    return sum(map(len, endings)), len(restored)


async def reconnected(process: Process) -> None:
    """Waits until the process has a connection again. If no call was in flight during the kill, nothing
    else has waited for a connection."""
    async with asyncio.timeout(_RECONNECTED_WITHIN_S):
        while True:
            try:
                await rows(process.database, "SELECT 1")
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def check_acknowledged(
    process: Process, tenant: LedgerTenant, acknowledged: Acknowledged
) -> None:
    balance = await balance_of(process, tenant)
    assert balance.held == 0
    assert balance.settled == sum(acknowledged.settled.values())
    assert await differences(process.database) == []
    settled = dict(
        await rows(
            process.database,
            """
            SELECT reservation_id, prompt + completion FROM resolutions
            WHERE organization_id = %s AND kind = 'settled'
            """,
            tenant.organization_id,
        )
    )
    assert settled == acknowledged.settled
    marked = await rows(
        process.database,
        "SELECT reservation_id FROM unsettled_marks WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert {row[0] for row in marked} == acknowledged.unsettled


async def test_what_was_acknowledged_survives(server: Server, proof: Proof) -> None:
    kills = proof.size(2, 100)
    calls = restored = 0
    for seed in range(kills):
        try:
            acknowledged, put_back = await check_kill(server, seed)
        except AssertionError as exc:
            raise AssertionError(f"kill of seed {seed}") from exc
        calls += acknowledged
        restored += put_back
    proof.count("kills of PostgreSQL under a working ledger", kills)
    proof.count("calls acknowledged around kills of PostgreSQL", calls)
    proof.count("holds lost by PostgreSQL and put back", restored)
