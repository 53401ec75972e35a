"""Tests that the timeouts of calls behave like `asyncio.timeout`."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.tables import each
from tollkeeper.core.runtime.timeouts import Alarm, Timeout, timeout, timeout_at

# A short time, and a time that is longer than any test.
TICK_S = 0.05
_LONG_S = 60.0


def _now() -> float:
    return asyncio.get_running_loop().time()


@each("delay_s", [-1.0, 0.0, 0.01, 0.2])
async def test_who_still_waits_is_ended_and_never_too_early(delay_s: float) -> None:
    due = _now() + delay_s
    with pytest.raises(TimeoutError), timeout(delay_s):
        await asyncio.sleep(_LONG_S)
    assert _now() >= due


async def test_who_is_done_in_time_goes_on_and_leaves_nothing() -> None:
    with timeout(TICK_S) as bound:
        await asyncio.sleep(0)
    await asyncio.sleep(3 * TICK_S)
    bound.expire()  # has no effect after the block
    await asyncio.sleep(0)


@each(
    "sooner", [lambda: _now() - 1, _now, lambda: _now() + 2 * TICK_S], ids=["past", "now", "soon"]
)
async def test_it_can_be_moved(sooner: Callable[[], float]) -> None:
    found: list[Timeout] = []

    async def wait() -> None:
        with timeout(_LONG_S) as bound:
            found.append(bound)
            await asyncio.sleep(_LONG_S)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    found[0].move(sooner())
    with pytest.raises(TimeoutError):
        await waiting
    found[0].move(_now())  # has no effect after the block
    assert not waiting.cancelled()


async def test_it_can_be_moved_away() -> None:
    with timeout(TICK_S) as bound:
        bound.move(_now() + _LONG_S)
        await asyncio.sleep(4 * TICK_S)


async def test_cancelling_is_not_being_late() -> None:
    async def wait() -> None:
        with timeout(_LONG_S):
            await asyncio.sleep(_LONG_S)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_cancelled_and_late_at_once_is_cancelled() -> None:
    async def wait() -> None:
        with timeout(_LONG_S) as bound:
            bound.expire()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(_LONG_S)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wait())


async def test_the_outer_one_ends_the_inner_block() -> None:
    with pytest.raises(TimeoutError), timeout(TICK_S), timeout(_LONG_S):
        await asyncio.sleep(_LONG_S)


async def test_many_end_together_and_each_its_own_task() -> None:
    due = _now() + 2 * TICK_S

    async def wait(number: int) -> str:
        try:
            with timeout_at(due if number % 2 else due + _LONG_S):
                await asyncio.sleep(6 * TICK_S)
        except TimeoutError:
            return "late"
        return "done"

    found = await asyncio.gather(*(wait(number) for number in range(200)))
    assert found == ["done", "late"] * 100


async def test_an_alarm_bounds_one_wait_after_the_other() -> None:
    alarm = Alarm()
    with alarm.until(_now() + TICK_S):
        await asyncio.sleep(0)
    # The timer of the first wait fires during the second wait, whose limit is later.
    with alarm.until(_now() + _LONG_S):
        await asyncio.sleep(3 * TICK_S)
    # This limit is earlier than the limit of the wait before.
    due = _now() + TICK_S
    with pytest.raises(TimeoutError), alarm.until(due):
        await asyncio.sleep(_LONG_S)
    assert _now() >= due
    # After a timeout, the alarm limits the next wait as well.
    with pytest.raises(TimeoutError), alarm.until(_now() + TICK_S):
        await asyncio.sleep(_LONG_S)
    alarm.close()


async def test_an_alarm_that_rings_between_two_waits_ends_neither() -> None:
    alarm = Alarm()
    with alarm.until(_now() + TICK_S):
        await asyncio.sleep(0)
    await asyncio.sleep(3 * TICK_S)
    due = _now() + TICK_S
    with pytest.raises(TimeoutError), alarm.until(due):
        await asyncio.sleep(_LONG_S)
    assert _now() >= due


async def test_a_moved_alarm_does_not_end_the_next_wait() -> None:
    alarm = Alarm()
    with alarm.until(_now() + _LONG_S):
        alarm.move(_now() + TICK_S)
        await asyncio.sleep(0)
    with alarm.until(_now() + _LONG_S):
        await asyncio.sleep(3 * TICK_S)
    alarm.close()


async def test_an_alarm_bounds_the_waits_of_its_present_task_only() -> None:
    alarm = Alarm()

    async def wait(delay_s: float, work_s: float) -> None:
        alarm.serve()
        with alarm.until(_now() + delay_s):
            await asyncio.sleep(work_s)

    # The timer of the first task is still set when the second task gets the alarm.
    await asyncio.create_task(wait(2 * TICK_S, 0))
    await asyncio.create_task(wait(_LONG_S, 4 * TICK_S))
    with pytest.raises(TimeoutError):
        await asyncio.create_task(wait(TICK_S, _LONG_S))
    alarm.close()
