"""Tests how items are collected in batches, in which order they are written, and when they are given
up."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence

from tests.support.tables import each
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.batches import Backoff, Batches, Limit, equal_share

# So long that a test that waits for it by mistake exceeds its own time limit and fails.
_FOR_EVER_S = 3600.0
_THREE = Limit(3)
_UNLIMITED = Limit()
_AT_ONCE = Backoff(first_s=0.0, max_s=0.0)


class Recorder:
    """Records each attempt to write a batch of numbers. An attempt waits for `go_on`, and fails if there
    are `errors` left or if the batch contains one of the `refused` numbers."""

    def __init__(
        self,
        *,
        batch: Limit = _THREE,
        queue: Limit = _UNLIMITED,
        collect_s: float = 0.0,
        weigh: Callable[[int], int] | None = None,
        owner: Callable[[int], Hashable] = lambda _item: None,
        refused: Collection[int] = (),
    ) -> None:
        self.attempts: list[list[int]] = []
        self.written: list[int] = []
        self.refused = refused
        self.given_up: list[int] = []
        self.errors: list[BaseException] = []
        self.attempted = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.batches: Batches[int] = Batches(
            self.write,
            name="test",
            batch=batch,
            queue=queue,
            collect_s=collect_s,
            weigh=weigh,
            owner=owner,
            give_up=self.give_up,
            backoff=_AT_ONCE,
        )

    async def write(self, batch: list[int]) -> None:
        self.attempts.append(list(batch))
        self.attempted.set()
        await self.go_on.wait()
        if self.errors:
            raise self.errors.pop(0)
        if not set(batch).isdisjoint(self.refused):
            raise ValueError("not a record")
        self.written.extend(batch)

    def give_up(self, items: Sequence[int]) -> None:
        self.given_up.extend(items)

    def add(self, *items: int) -> None:
        for item in items:
            self.batches.add(item)


async def test_items_are_written_in_order_and_in_batches() -> None:
    recorder = Recorder()
    recorder.add(*range(7))
    assert await recorder.batches.drain()
    assert recorder.attempts == [[0, 1, 2], [3, 4, 5], [6]]
    assert not recorder.batches.busy
    recorder.add(7)
    assert await recorder.batches.drain()
    assert recorder.attempts[3:] == [[7]]


async def test_a_batch_is_bounded_by_weight_and_has_at_least_one_item() -> None:
    recorder = Recorder(batch=Limit(3, weight=10), weigh=lambda item: item)
    recorder.add(50, 4, 5, 6, 1, 1, 1, 1)
    assert await recorder.batches.drain()
    assert recorder.attempts == [[50], [4, 5, 6], [1, 1, 1], [1]]


async def test_more_is_collected_until_the_batch_is_full() -> None:
    recorder = Recorder(collect_s=_FOR_EVER_S)
    recorder.add(1, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert recorder.attempts == []
    full = Recorder(collect_s=_FOR_EVER_S)
    full.add(1, 2, 3)
    await full.attempted.wait()
    assert full.attempts == [[1, 2, 3]]
    assert await recorder.batches.drain()
    assert recorder.attempts == [[1, 2]]


async def test_collecting_ends_after_its_time() -> None:
    recorder = Recorder(collect_s=0.01)
    recorder.add(1)
    await recorder.attempted.wait()
    recorder.add(2)
    assert await recorder.batches.drain()
    assert recorder.attempts == [[1], [2]]


async def test_what_cannot_be_written_now_is_written_again_before_later_items() -> None:
    recorder = Recorder()
    recorder.errors = [Unavailable("away"), Unavailable("still away")]
    recorder.add(1, 2)
    await asyncio.sleep(0)
    recorder.add(3, 4)
    assert await recorder.batches.drain()
    assert recorder.attempts[-2:] == [[1, 2, 3], [4]]
    assert len(recorder.attempts) == 4
    assert recorder.given_up == []


async def test_an_item_that_cannot_be_written_is_given_up_alone() -> None:
    recorder = Recorder(batch=Limit(8), refused={6})
    recorder.add(*range(1, 13))
    assert await recorder.batches.drain()
    assert recorder.given_up == [6]
    assert recorder.written == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]


async def test_a_database_that_goes_away_meanwhile_loses_no_item_and_repeats_none() -> None:
    recorder = Recorder(batch=Limit(4), refused={1})
    recorder.errors = [ValueError("not a record"), ValueError("not a record")]
    recorder.errors += [ValueError("not a record"), Unavailable("away")]
    recorder.add(1, 2, 3, 4)
    assert await recorder.batches.drain()
    assert (recorder.given_up, recorder.written) == ([1], [2, 3, 4])


@each(("limit", "kept"), [(Limit(3), [7, 8, 9]), (Limit(100, weight=20), [8, 9])], ids=str)
async def test_the_oldest_are_given_up_when_too_many_wait(limit: Limit, kept: list[int]) -> None:
    recorder = Recorder(queue=limit, collect_s=_FOR_EVER_S, weigh=lambda item: item)
    recorder.add(*range(10))
    assert recorder.batches.queued == len(kept)
    assert await recorder.batches.drain()
    assert recorder.attempts == [kept]
    assert recorder.given_up == list(range(10 - len(kept)))


@each("limit", [Limit(4), Limit(100, weight=50)], ids=str)
async def test_no_owner_displaces_the_items_of_others(limit: Limit) -> None:
    few = {1, 3}
    recorder = Recorder(queue=limit, weigh=lambda item: item, owner=lambda item: item in few)
    recorder.batches.add(*range(20))
    assert recorder.given_up == [0, 2, *range(4, 18)]
    await recorder.batches.drain()
    assert recorder.written == [1, 3, 18, 19]


def test_equal_share() -> None:
    assert equal_share([10], 3) == 3
    assert equal_share([1, 10], 5) == 4
    assert equal_share([2, 2, 9, 9], 10) == 3
    assert equal_share([5, 5], 1) == 0


async def test_a_batch_that_goes_back_counts_for_the_limit_again() -> None:
    recorder = Recorder(queue=Limit(100, weight=10), weigh=lambda item: item)
    recorder.go_on.clear()
    recorder.errors = [Unavailable("away")]
    recorder.add(3, 4)
    await recorder.attempted.wait()
    recorder.add(5, 2)
    recorder.go_on.set()
    assert await recorder.batches.drain()
    assert recorder.given_up == [3, 4]
    assert recorder.attempts == [[3, 4], [5, 2]]


async def test_what_is_not_written_by_the_deadline_is_given_up() -> None:
    recorder = Recorder()
    recorder.go_on.clear()
    recorder.add(1, 2, 3, 4)
    await recorder.attempted.wait()
    assert not await recorder.batches.drain(0.01)
    assert recorder.given_up == [1, 2, 3, 4]
    assert (recorder.batches.queued, recorder.batches.busy) == (0, False)
    recorder.go_on.set()
    recorder.add(5)
    assert await recorder.batches.drain(_FOR_EVER_S)
    assert recorder.attempts[-1] == [5]
    assert recorder.given_up == [1, 2, 3, 4]


async def test_items_that_wait_for_another_attempt_are_given_up_once() -> None:
    recorder = Recorder()
    recorder.errors = [Unavailable("away")] * 1_000_000
    recorder.add(1, 2)
    assert not await recorder.batches.drain(0.01)
    assert recorder.given_up == [1, 2]


async def test_draining_an_empty_queue_changes_nothing_for_the_next_item() -> None:
    recorder = Recorder(collect_s=_FOR_EVER_S)
    assert await recorder.batches.drain()
    recorder.add(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert recorder.attempts == []
    assert await recorder.batches.drain()
    assert recorder.attempts == [[1]]


def test_pauses_double_up_to_a_maximum() -> None:
    backoff = Backoff(first_s=0.1, max_s=2.0)
    for failures, base_s in ((1, 0.1), (2, 0.2), (3, 0.4), (5, 1.6), (6, 2.0), (10**9, 2.0)):
        for _ in range(50):
            assert 0.5 * base_s <= backoff.pause_s(failures) <= 1.5 * base_s
