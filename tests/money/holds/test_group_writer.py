"""Tests the batches and the order of group commits. No caller waits forever, or fails because another
caller's item cannot be written."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.backend_calls import until
from tollkeeper.core.errors import Unavailable
from tollkeeper.money.holds.group_writer import (
    BATCH_MAX,
    QUEUED_OF_OWNER_MAX,
    GroupQueue,
    QueuesByOwner,
    writing,
)

_PATIENCE_S = 20


class Recorder:
    """Records each batch of numbers, waits for `go_on`, and returns the numbers times ten. A negative
    number makes its batch fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.unavailable = False
        self.writer: GroupQueue[int, int] = GroupQueue(
            writing(self.write), name="test", queued_max=2000
        )

    async def write(self, batch: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(batch))
        await self.go_on.wait()
        if self.unavailable:
            raise Unavailable("away", retry_after_s=3)
        if any(number < 0 for number in batch):
            raise ValueError(min(batch))
        return [number * 10 for number in batch]


async def test_what_is_ready_at_once_goes_out_together_and_in_order() -> None:
    recorder = Recorder()
    results = await asyncio.gather(*[recorder.writer.submit(number) for number in range(5)])
    assert list(results) == [0, 10, 20, 30, 40]
    assert recorder.batches == [[0, 1, 2, 3, 4]]
    assert not recorder.writer.busy


async def test_items_of_successive_iterations_share_the_first_batch() -> None:
    recorder = Recorder()
    waiting = []
    for number in range(3):
        waiting.append(recorder.writer.submit(number))
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [0, 10, 20]
    assert recorder.batches == [[0, 1, 2]]


async def test_what_arrives_meanwhile_goes_out_next() -> None:
    recorder = Recorder()
    recorder.go_on.clear()
    first = recorder.writer.submit(1)
    await until(lambda: len(recorder.batches) == 1)
    rest = [recorder.writer.submit(number) for number in range(2, BATCH_MAX + 5)]
    recorder.go_on.set()
    await asyncio.gather(first, *rest)
    assert [len(batch) for batch in recorder.batches] == [1, BATCH_MAX, 3]


async def test_each_gets_an_error_of_its_own_when_nothing_can_be_written() -> None:
    recorder = Recorder()
    recorder.unavailable = True
    waiting = [recorder.writer.submit(number) for number in range(3)]
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert recorder.batches == [[0, 1, 2]]
    assert all(isinstance(error, Unavailable) and error.retry_after_s == 3 for error in errors)
    assert len({id(error) for error in errors}) == 3
    recorder.unavailable = False
    assert await recorder.writer.submit(7) == 70


async def test_who_spoils_a_batch_fails_alone() -> None:
    recorder = Recorder()
    waiting = [recorder.writer.submit(number) for number in (1, -2, 3)]
    first, second, third = await asyncio.gather(*waiting, return_exceptions=True)
    assert (first, third) == (10, 30)
    assert isinstance(second, ValueError)
    assert recorder.batches == [[1, -2, 3], [1], [-2], [3]]


async def test_another_queue_may_give_the_result() -> None:
    recorder, other = Recorder(), Recorder()
    recorder.go_on.clear()
    waiting = [recorder.writer.submit(number) for number in range(3)]
    await until(lambda: len(recorder.batches) == 1)
    other.go_on.clear()
    for number in (1, 2):
        assert other.writer.submit(number, waiting[number]) is waiting[number]
    recorder.writer.give({waiting[0]: 0}, [7])
    assert [one.done() for one in waiting] == [True, False, False]
    other.unavailable = True
    other.go_on.set()
    with pytest.raises(Unavailable, match="away"):
        await waiting[1]
    with pytest.raises(Unavailable, match="away"):
        await waiting[2]
    recorder.go_on.set()
    await recorder.writer.drain()
    assert await waiting[0] == 7


async def test_nobody_waits_for_ever_when_it_is_stopped() -> None:
    recorder = Recorder()
    recorder.go_on.clear()
    writing = recorder.writer.submit(1)
    await until(lambda: len(recorder.batches) == 1)
    queued = recorder.writer.submit(2)
    await recorder.writer.stop()
    for one in (writing, queued):
        with pytest.raises(Unavailable, match="shutting down"):
            await asyncio.wait_for(one, _PATIENCE_S)
    assert not recorder.writer.busy
    recorder.go_on.set()
    assert await recorder.writer.submit(3) == 30


async def test_who_leaves_changes_nothing_for_the_others() -> None:
    recorder = Recorder()
    recorder.go_on.clear()
    waiting = [recorder.writer.submit(number) for number in range(3)]
    await until(lambda: len(recorder.batches) == 1)
    waiting[1].cancel()
    recorder.go_on.set()
    assert (await waiting[0], await waiting[2]) == (0, 20)


async def test_what_still_waits_can_be_taken_back() -> None:
    recorder = Recorder()
    recorder.go_on.clear()
    writing = recorder.writer.submit(1)
    await until(lambda: len(recorder.batches) == 1)
    queued = [recorder.writer.submit(number) for number in (2, 3)]
    assert not recorder.writer.withdraw(writing)
    assert recorder.writer.withdraw(queued[0])
    assert not recorder.writer.withdraw(queued[0])
    recorder.go_on.set()
    assert (await writing, await queued[1]) == (10, 30)
    assert recorder.batches == [[1], [3]]


async def test_the_queue_is_bounded() -> None:
    recorder = Recorder()
    waiting = [recorder.writer.submit(number) for number in range(2000)]
    with pytest.raises(Unavailable, match="overloaded"):
        recorder.writer.submit(1)
    await asyncio.gather(*waiting)


async def test_owners_take_turns() -> None:
    """One owner has thousands of queued items. The only item of another owner is in the next batch."""
    batches: list[list[int]] = []
    go_on = asyncio.Event()

    async def write(batch: Sequence[int]) -> Sequence[int]:
        batches.append(list(batch))
        await go_on.wait()
        return batch

    writer: GroupQueue[int, int] = GroupQueue(
        writing(write), name="test", owner=lambda item: item % 2
    )
    first = writer.submit(0)
    await until(lambda: batches == [[0]])
    many = [writer.submit(number) for number in range(2, 4000, 2)]
    one = writer.submit(1)
    go_on.set()
    assert await one == 1
    assert batches[1][:3] == [2, 1, 4]
    assert await first == 0
    assert len(await asyncio.gather(*many)) == len(many)
    assert sum(map(len, batches)) == len(many) + 2


async def test_one_owner_does_not_fill_the_queue() -> None:
    async def write(batch: Sequence[int]) -> Sequence[int]:
        return batch

    writer: GroupQueue[int, int] = GroupQueue(
        writing(write), name="test", owner=lambda item: item % 2
    )
    many = [writer.submit(0) for _ in range(QUEUED_OF_OWNER_MAX)]
    with pytest.raises(Unavailable) as refused:
        writer.submit(0)
    assert refused.value.retry_after_s == 2
    assert await writer.submit(1) == 1
    await asyncio.gather(*many)
    assert writer.queued == 0
    withdrawn, kept = writer.submit(2), writer.submit(4)
    assert writer.withdraw(withdrawn)
    assert await kept == 4


async def test_an_owner_that_waits_delays_no_other_owner() -> None:
    blocked = asyncio.Event()
    written: list[list[tuple[str, int]]] = []

    async def write(batch: Sequence[tuple[str, int]]) -> Sequence[int]:
        if batch[0][0] == "slow":
            await blocked.wait()
        written.append(list(batch))
        return [number for _, number in batch]

    queues = QueuesByOwner(write, name="test", owner=lambda item: item[0])
    slow = [queues.submit(("slow", number)) for number in range(2)]
    quick = [queues.submit(("quick", number)) for number in range(2)]
    assert await asyncio.gather(*quick) == [0, 1]
    assert await queues.submit(("quick", 2)) == 2
    assert (len(queues.all), queues.queued) == (1, 0)
    late = queues.submit(("slow", 2))
    assert queues.queued == 1
    blocked.set()
    assert await asyncio.gather(*slow, late) == [0, 1, 2]
    assert queues.all == []
    assert written == [
        [("quick", 0), ("quick", 1)],
        [("quick", 2)],
        [("slow", 0), ("slow", 1)],
        [("slow", 2)],
    ]
