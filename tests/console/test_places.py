"""Tests who has to make room if many requests without a session wait."""

import asyncio
from collections import Counter

from tollkeeper.console.places import Places


async def test_the_network_with_the_most_waits_makes_room() -> None:
    places, ended, waits = Places(), list[str](), []

    async def wait(network: str, number: int) -> None:
        try:
            async with places.take(network, places_max=8, deadline_s=60):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(f"{network} {number}")

    async def arrive(network: str, count: int) -> None:
        for number in range(count):
            waits.append(asyncio.create_task(wait(network, number)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    await arrive("quiet", 1)
    await arrive("loud", 6)
    await arrive("other", 1)
    assert ended == []
    await arrive("loud", 30)
    assert Counter(one.split()[0] for one in ended) == {"loud": 30}
    assert ended[:6] == [f"loud {number}" for number in range(6)]
    await arrive("other", 4)
    # Now the two have four and three waits.
    assert Counter(one.split()[0] for one in ended) == {"loud": 33, "other": 1}
    for one in waits:
        one.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert len(places) == 0


async def test_a_wait_ends_at_its_deadline_and_leaves_its_place() -> None:
    places = Places()
    for _ in range(3):
        try:
            async with places.take("here", places_max=1, deadline_s=0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            assert len(places) == 0
