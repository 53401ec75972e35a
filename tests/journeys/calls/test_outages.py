"""Tests replicas that fail for a while: clients do not notice it if the backend has another replica."""

import asyncio
import time
from pathlib import Path

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import COST, scripted_gateway
from tests.support.upstream import Upstream, chat, refuse


async def test_a_broken_replica_is_spared_and_comes_back(data_dir: Path, conninfo: str) -> None:
    """U21 with a second replica: no client notices the failures."""
    async with (
        Upstream(refuse(503)) as broken,
        Upstream(chat()) as spare,
        scripted_gateway(data_dir, conninfo, spare, urls=(broken.url, spare.url)) as scripted,
    ):
        started = time.monotonic()
        answers = [await scripted.chat(stream=at % 2 == 0) for at in range(20)]
        assert {found.status_code for found in answers} == {200}
        # The broken replica gets three calls that fail, and then at most one call a second.
        assert len(broken.requests) <= 4 + (time.monotonic() - started)
        broken.play(chat())
        health = scripted.gateway.services.backends["scripted"].health
        while health().replicas[broken.url] != "healthy":
            assert (await scripted.chat()).status_code == 200
            await asyncio.sleep(0.05)
        assert {entry.status for entry in await scripted.entries()} == {"settled"}


async def test_a_broken_backend_is_tried_by_every_call(data_dir: Path, conninfo: str) -> None:
    """U21 with a single replica: no call is refused because of the failures of other calls."""
    async with (
        Upstream(refuse(503)) as upstream,
        scripted_gateway(data_dir, conninfo, upstream) as scripted,
    ):
        for at in range(20):
            found = await scripted.chat(stream=at % 2 == 0)
            assert_error(found, 502, "provider_unavailable")
        assert {entry.status for entry in await scripted.entries()} == {"released"}
        upstream.play(chat())
        assert (await scripted.chat()).status_code == 200
        balance = await scripted.balance()
        assert (balance["settled"], balance["held"], balance["unsettled"]) == (COST, 0, 0)
