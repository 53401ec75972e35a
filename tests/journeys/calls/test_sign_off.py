"""Tests that a stopped gateway signs off, and that recovery deletes the lease of a killed gateway."""

import asyncio
import signal
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.scripted_gateway import ScriptedGateway, eventually
from tests.support.upstream import Upstream, chat
from tollkeeper.money.unsettled.recovery import Recovery

pytestmark = pytest.mark.slow


async def _processes(installed: InstalledProgram) -> set[UUID]:
    async with installed.services.database.autocommit() as connection:
        cursor = await connection.execute("SELECT id FROM processes")
        return {row[0] for row in await cursor.fetchall()}


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
async def test_a_lease_ends_with_its_process(
    order: signal.Signals, tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    async with (
        Upstream(chat()) as upstream,
        installed_program(tmp_path, data_dir, conninfo, upstream, compiled) as installed,
    ):
        before = await _processes(installed)
        async with installed.serving() as (running, scripted):
            await _call(scripted)
            mine = await _processes(installed) - before
            assert len(mine) == 1
            (worker,) = await asyncio.to_thread(running.workers)
            if order is signal.SIGKILL:
                worker.kill()
            running.process.send_signal(order)
            await asyncio.to_thread(running.process.wait, 60)
            await eventually(lambda: not worker.is_running())
        left = await _processes(installed)
        if order is signal.SIGTERM:
            assert not mine & left
            return
        assert mine <= left
        # The killed process did not sign off, so recovery deletes its lease.
        await Recovery(installed.services.database, 0.01).ledger_recover()
        assert not mine & await _processes(installed)


async def _call(scripted: ScriptedGateway) -> None:
    """Makes a call. Its hold shows that the process is alive, even without a heartbeat."""
    answered = await scripted.chat()
    assert answered.status_code == 200
    assert (await scripted.entry_of(answered)).status == "settled"
