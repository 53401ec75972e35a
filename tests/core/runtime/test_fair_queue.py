"""Tests that owners take turns, however many items each of them has queued, and that queues are
limited."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.runtime.fair_queue import FairQueue, FairSlots, QueueFull, share

_OWNERS = st.sampled_from("abcde")


def _queue(items_max: int = 1000, lane_max: int = 1000) -> FairQueue[int]:
    return FairQueue(items_max=items_max, lane_max=lane_max)


def test_lanes_are_served_in_turn() -> None:
    queue = _queue()
    for number in range(5):
        queue.push("many", number)
    queue.push("one", 100)
    queue.push("two", 200)
    queue.push("two", 201)
    assert [queue.pop() for _ in range(8)] == [0, 100, 200, 1, 201, 2, 3, 4]
    with pytest.raises(IndexError):
        queue.pop()


@given(st.lists(_OWNERS, max_size=60))
def test_nobody_waits_for_more_than_one_item_of_each_other_for_each_of_its_own(
    pushed: list[str],
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(items_max=100, lane_max=100)
    counts: Counter[str] = Counter()
    for owner in pushed:
        queue.push(owner, (owner, counts[owner]))
        counts[owner] += 1
    served: Counter[str] = Counter()
    for _ in pushed:
        owner, number = queue.pop()
        assert number == served[owner], "the order within a lane is that of arrival"
        served[owner] += 1
        assert all(
            served[owner] <= served[other] + 1 for other in counts if served[other] < counts[other]
        )
    assert served == counts
    assert len(queue) == 0


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "discard"]), _OWNERS)))
def test_nothing_is_lost_or_served_twice(steps: list[tuple[str, str]]) -> None:
    queue = _queue()
    # The owner of each item, and the number that the queue gave it.
    waiting: dict[int, tuple[str, int]] = {}
    for number, (step, owner) in enumerate(steps):
        match step:
            case "push":
                waiting[number] = owner, queue.push(owner, number)
            case "pop" if waiting:
                del waiting[queue.pop()]
            case "discard":
                oldest = next((item for item, (of, _) in waiting.items() if of == owner), -1)
                _, pushed_as = waiting.get(oldest, (owner, -1))
                assert queue.discard(owner, pushed_as) is (oldest in waiting)
                waiting.pop(oldest, None)
        assert len(queue) == len(waiting)
    assert {queue.pop() for _ in waiting} == set(waiting)


class _Uncomparable:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("the queue searched for the item")

    __hash__ = object.__hash__


def test_no_item_is_searched_for() -> None:
    """If thousands of an owner's items were discarded by a search, all other owners would wait."""
    queue: FairQueue[_Uncomparable] = FairQueue(items_max=10, lane_max=10)
    numbers = [queue.push("hostile", _Uncomparable()) for _ in range(10)]
    for number in reversed(numbers):
        assert queue.discard("hostile", number)
    assert len(queue) == 0


def test_bounds() -> None:
    queue = _queue(items_max=3, lane_max=2)
    queue.push("a", 1)
    queue.push("a", 2)
    with pytest.raises(QueueFull):
        queue.push("a", 3)
    queue.push("b", 4)
    with pytest.raises(QueueFull):
        queue.push("c", 5)
    assert sorted(queue.pop() for _ in range(len(queue))) == [1, 2, 4]


def _slots(total: int = 2, *, owner_max: int | None = None, waiting: int = 100) -> FairSlots:
    return FairSlots(
        total, owner_max=owner_max or total, waiting_max=waiting, waiting_owner_max=waiting
    )


def _soon() -> float:
    return asyncio.get_running_loop().time() + 20


async def _tick() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_flood_waits_behind_itself() -> None:
    slots, served = _slots(1), list[str]()

    async def use(owner: str) -> None:
        await slots.acquire(owner, until=_soon())
        served.append(owner)
        await asyncio.sleep(0)
        slots.release(owner)

    flood = [asyncio.create_task(use("hostile")) for _ in range(50)]
    await asyncio.sleep(0)
    quiet = asyncio.create_task(use("quiet"))
    await asyncio.gather(*flood, quiet)
    assert served.index("quiet") < 5
    assert slots.waiting == 0


async def test_one_owner_does_not_hold_all() -> None:
    slots = _slots(8, owner_max=share(8))
    for _ in range(7):
        await slots.acquire("hostile", until=_soon())
    more = asyncio.create_task(slots.acquire("hostile", until=_soon()))
    await _tick()
    assert not more.done()
    await slots.acquire("quiet", until=_soon())
    slots.release("hostile")
    await more
    assert slots._held == {"hostile": 7, "quiet": 1}


async def test_a_wait_has_its_end() -> None:
    slots = _slots(1)
    await slots.acquire("a", until=_soon())
    with pytest.raises(TimeoutError):
        await slots.acquire("b", until=asyncio.get_running_loop().time() + 0.01)
    assert slots.waiting == 0
    slots.release("a")
    await slots.acquire("b", until=_soon())


async def test_too_many_that_wait_are_refused_at_once() -> None:
    slots = _slots(1, waiting=2)
    await slots.acquire("a", until=_soon())
    waiting = [asyncio.create_task(slots.acquire("a", until=_soon())) for _ in range(2)]
    await _tick()
    with pytest.raises(QueueFull):
        await slots.acquire("a", until=_soon())
    for _ in range(3):
        slots.release("a")
        await _tick()
    await asyncio.gather(*waiting)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=1, max_size=12))
async def test_slots_survive_those_who_leave(users: list[tuple[str, bool]]) -> None:
    slots = _slots(2, owner_max=1)

    async def use(owner: str) -> None:
        await slots.acquire(owner, until=_soon())
        try:
            await asyncio.sleep(0)
        finally:
            slots.release(owner)

    tasks = [asyncio.create_task(use(owner)) for owner, _ in users]
    await asyncio.sleep(0)
    for task, (_, leaves) in zip(tasks, users, strict=True):
        if leaves:
            task.cancel()
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots._free, slots._held, slots.waiting) == (2, {}, 0)


@each(("total", "most"), [(1, 1), (7, 7), (8, 7), (64, 56), (1024, 896)])
def test_share(total: int, most: int) -> None:
    assert share(total) == most
