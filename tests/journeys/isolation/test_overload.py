"""More calls than a process takes: the excess is refused at once, in the envelope, without a trace."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journeys.isolation.attacks import by_words
from tests.support.gateway import assert_error
from tests.support.scripted_gateway import ScriptedGateway, eventually, scripted_gateway
from tests.support.upstream import Upstream

_CALLS = 16
_HANG = [{"role": "user", "content": "hang"}]


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with (
        Upstream(by_words()) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, limits={"calls": _CALLS, "drain_s": 0.1}
        ) as running,
    ):
        yield running


async def test_the_excess_is_refused_and_others_are_answered(shared: ScriptedGateway) -> None:
    hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
    inference = shared.gateway.services.inference
    async with hostile.another_client() as client:
        calls = [asyncio.create_task(client.chat(messages=_HANG)) for _ in range(3 * _CALLS)]
        # One organization has seven eighths of the places.
        await eventually(lambda: sum(task.done() for task in calls) == 3 * _CALLS - 14)
        assert inference.running == 14
        for task in calls:
            if task.done():
                assert_error(task.result(), 503, "service_unavailable")
                assert task.result().headers["retry-after"] == "1"
        for _ in range(5):
            assert (await quiet.chat()).status_code == 200
        holding = [asyncio.create_task(quiet.chat(messages=_HANG)) for _ in range(2)]
        await eventually(lambda: inference.running == _CALLS)
        stranger = await shared.with_tenant()
        assert_error(await stranger.chat(), 503, "service_unavailable")
        assert await stranger.entries() == []
        for task in (*calls, *holding):
            task.cancel()
        await asyncio.gather(*calls, *holding, return_exceptions=True)
    await eventually(lambda: inference.running == 0)
    assert (await quiet.chat()).status_code == 200
    assert (await hostile.chat()).status_code == 200
    for tenant in (hostile, quiet):
        assert (await tenant.balance())["held"] == 0
