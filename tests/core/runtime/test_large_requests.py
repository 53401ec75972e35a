"""Tests the thread for large requests: organizations take turns, and every wait is limited."""

import asyncio
import threading

import pytest

from tests.support.scripted_gateway import eventually
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime import large_requests
from tollkeeper.core.runtime.fair_queue import FairSlots
from tollkeeper.core.runtime.large_requests import run_in_thread


class _Thread:
    """Provides work that waits for `may_go_on`, and records the order in which it ends."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.done: list[str] = []
        self.begun = 0

    def work(self, name: str) -> str:
        self.begun += 1
        assert self.may_go_on.wait(20)
        self.done.append(name)
        return name


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> FairSlots:
    few = FairSlots(1, owner_max=1, waiting_max=4, waiting_owner_max=3)
    monkeypatch.setattr(large_requests, "_thread_slot", few)
    return few


async def test_a_stranger_does_not_wait_behind_all_of_a_flood(turns: FairSlots) -> None:
    thread = _Thread()
    flood = [
        asyncio.create_task(run_in_thread("hostile", thread.work, f"hostile {number}"))
        for number in range(4)
    ]
    await eventually(lambda: thread.begun == 1 and turns.waiting == 3)
    quiet = asyncio.create_task(run_in_thread("quiet", thread.work, "quiet"))
    await eventually(lambda: turns.waiting == 4)
    thread.may_go_on.set()
    assert await quiet == "quiet"
    await asyncio.gather(*flood)
    assert thread.done.index("quiet") <= 2
    assert turns.waiting == 0


async def test_too_many_are_refused(turns: FairSlots) -> None:
    thread = _Thread()
    flood = [
        asyncio.create_task(run_in_thread("hostile", thread.work, "hostile")) for _ in range(4)
    ]
    await eventually(lambda: turns.waiting == 3)
    with pytest.raises(Unavailable) as refused:
        await run_in_thread("hostile", thread.work, "one too many")
    assert refused.value.retry_after_s == 1
    thread.may_go_on.set()
    await asyncio.gather(*flood)


async def test_nobody_waits_for_ever(turns: FairSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "_WAIT_S", 0.05)
    thread = _Thread()
    first = asyncio.create_task(run_in_thread("one", thread.work, "one"))
    await eventually(lambda: thread.begun == 1)
    with pytest.raises(Unavailable):
        await run_in_thread("other", thread.work, "other")
    thread.may_go_on.set()
    assert await first == "one"


async def test_an_error_gives_the_turn_back(turns: FairSlots) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            await run_in_thread("one", fail)
