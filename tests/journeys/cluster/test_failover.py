"""Tests that the database's primary fails and its standby takes over while gateways serve calls."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.data_folders import data_folder
from tests.support.failovers import Callers, compare_logs, settled, two_gateways
from tests.support.postgres_server import PostgresServer
from tollkeeper.database.migrations import migrate

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_standby_takes_over(synchronous: bool, compiled: dict[str, str]) -> None:
    """With a synchronous standby, no acknowledged settlement is lost. With an asynchronous standby, the
    last calls can be missing as a whole, but the ledger is consistent. `compare-log` finds the missing
    calls in the request logs, and books exactly these calls once."""
    with (
        data_folder() as folder,
        primary_with_standby(folder, synchronous=synchronous) as (primary, standby),
    ):
        url = f"postgresql://postgres@{primary.address},{standby.address}/postgres"
        async with two_gateways(folder, compiled, url) as (installed, served):
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
        lost = set(callers.acknowledged) - settled(standby)
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
        await asyncio.to_thread(compare_logs, program, standby, logs, lost)
        assert set(callers.acknowledged) <= settled(standby)
        assert await asyncio.to_thread(program.json, "ledger", "verify") == _NO_DIFFERENCE
