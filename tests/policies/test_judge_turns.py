"""Tests that an organization that floods the judge delays only its own questions."""

import asyncio
from pathlib import Path

from prometheus_client import REGISTRY

from tests.support.judged_gateway import Asked, JudgedGateway, Opinion, judge_answer, judged_gateway
from tests.support.scripted_gateway import eventually
from tests.support.upstream import Peer, hang
from tollkeeper.policies.judge.slots import JudgeLoad


async def test_a_flood_leaves_the_judge_to_others(judged: JudgedGateway) -> None:
    hostile, quiet = await judged.with_tenant(), await judged.with_tenant()
    await hostile.enforce("bomb", direction="request")
    await quiet.enforce("bomb", direction="request")
    released = asyncio.Event()

    async def wait(peer: Peer) -> None:
        await released.wait()
        await judge_answer(0)(peer)

    def opinion(asked: Asked) -> Opinion:
        return wait if "flood" in asked.text else 0

    judged.judge.opinion = opinion
    async with hostile.scripted.another_client() as client:
        flood = [
            asyncio.create_task(
                client.chat(messages=[{"role": "user", "content": f"flood {number}"}])
            )
            for number in range(40)
        ]
        # One organization can use seven of the judge's eight slots.
        await eventually(lambda: judged.judge.under_way == 7)
        for number in range(3):
            assert (await quiet.chat(f"quiet {number}")).status_code == 200
        assert judged.judge.under_way == 7
        released.set()
        answers = await asyncio.gather(*flood)
    assert {found.status_code for found in answers} == {200}


async def test_the_load_of_the_judge_is_measured(judged: JudgedGateway) -> None:
    tenant = await judged.with_tenant()
    await tenant.enforce("bomb", direction="request")
    services = judged.scripted.gateway.services
    released = asyncio.Event()

    async def wait(peer: Peer) -> None:
        await released.wait()
        await judge_answer(0)(peer)

    def measured() -> tuple[float | None, float | None, float | None]:
        name = "tollkeeper_judge_queue_length"
        return (
            REGISTRY.get_sample_value("tollkeeper_judge_slots_in_use"),
            REGISTRY.get_sample_value(name, {"asker": "calls"}),
            REGISTRY.get_sample_value(name, {"asker": "monitoring"}),
        )

    judged.judge.opinion = lambda _: wait
    async with tenant.scripted.another_client() as client:
        calls = [
            asyncio.create_task(
                client.chat(messages=[{"role": "user", "content": f"load {number}"}])
            )
            for number in range(12)
        ]
        await eventually(lambda: services.checks.judge_load == JudgeLoad(7, 5, 0))
        await services.upkeep.watch_process()
        assert measured() == (7, 5, 0)
        released.set()
        assert {found.status_code for found in await asyncio.gather(*calls)} == {200}
    await services.upkeep.watch_process()
    assert measured() == (0, 0, 0)


async def test_questions_that_run_out_of_time_are_not_held_against_the_judge(
    data_dir: Path, conninfo: str
) -> None:
    async with judged_gateway(
        data_dir, conninfo, judge={"deadline_s": 0.3, "concurrency": 8}
    ) as shared:
        hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
        await hostile.enforce("bomb", direction="request")
        await quiet.enforce("bomb", direction="request")
        shared.judge.opinion = lambda asked: hang() if "stall" in asked.text else 0
        for number in range(5):
            assert (await hostile.chat(f"stall {number}")).status_code == 503
        judge = shared.scripted.gateway.services.backends["judge"]
        assert judge.health().ready
        assert (await quiet.chat("quiet")).status_code == 200
