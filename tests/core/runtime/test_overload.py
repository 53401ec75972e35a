"""Tests that an overloaded process limits its active calls, based on samples of the event loop, and
gives each owner its share."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.overload import (
    BACKLOG_MAX,
    CALM_WINDOWS,
    CROWD_MAX,
    LIMIT,
    LIMIT_MIN,
    SLOW_DATABASE_LIMIT,
    UNEVEN_LIMIT_MIN,
    WINDOW_S,
    LoopSampler,
    OverloadGate,
    OwnerCalls,
)

_TURN_S_MAX = 0.025
# Durations of a long and a short turn of the event loop, in seconds.
_LONG, _SHORT = 0.1, 0.0001


class Watched:
    """Wraps a gate whose clock the test advances. `window` adds the four samples of one window."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gate = OverloadGate(_TURN_S_MAX, clock=lambda: self.now)

    def window(self, *turns: float, backlog: int = 0) -> None:
        for turn_s in turns * 4 if len(turns) == 1 else turns:
            self.now += WINDOW_S / 4 + 1e-6
            self.gate.sample(turn_s, backlog)

    def takes(self, owner: str, count: int) -> int:
        """Returns how many of `count` calls of the owner are admitted. The admitted calls stay active."""
        return sum(self.takes_one(owner) for _ in range(count))

    def takes_one(self, owner: str) -> bool:
        try:
            self.gate.require_room(owner)
        except Unavailable:
            return False
        self.gate.owners.setdefault(owner, OwnerCalls(owner)).running += 1
        return True

    def limit(self) -> int | None:
        return self.gate.limit

    def pass_on(self, owner: str, count: int) -> None:
        """Lets calls of the owner wait for their backends."""
        self.gate.owners[owner].waiting += count


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_everything_is_taken_without_an_overload(watched: Watched) -> None:
    assert watched.takes("one", 5000) == 5000
    for _ in range(50):
        watched.window(_SHORT)
        assert watched.takes("one", 10) == 10
    assert watched.limit() is None


def test_a_single_long_turn_is_no_overload(watched: Watched) -> None:
    watched.window(_LONG, _LONG, _LONG, _SHORT)
    assert watched.limit() is None


def test_long_turns_on_end_are_an_overload(watched: Watched) -> None:
    watched.takes("one", 1000)
    watched.window(_LONG)
    assert watched.limit() == LIMIT
    with pytest.raises(Unavailable, match="overloaded") as refused:
        watched.gate.require_room("one")
    assert refused.value.retry_after_s == 1
    # Calls that end or wait for their backends are inactive, and make room for other calls.
    watched.pass_on("one", 1000)
    assert watched.takes("one", 1000) == LIMIT


def test_few_samples_decide_nothing(watched: Watched) -> None:
    """A turn that takes seconds is only one sample."""
    watched.now += 10
    watched.gate.sample(10, 0)
    assert watched.limit() is None


def test_the_owner_with_the_most_is_refused_first(watched: Watched) -> None:
    watched.takes("flood", 1000)
    watched.window(_LONG)
    # The flood has more calls than the limit, but other owners still get their share.
    assert watched.takes("flood", 1) == 0
    assert watched.takes("quiet", 5) == 5
    assert watched.takes("other", 5) == 5
    assert watched.takes("flood", 1) == 0


def test_equal_owners_have_equal_shares(watched: Watched) -> None:
    owners = ["a", "b", "c", "d"]
    for owner in owners:
        watched.takes(owner, 100)
    watched.window(_LONG)
    for owner in owners:
        watched.pass_on(owner, 99)
    taken = dict.fromkeys(owners, 1)
    for _ in range(100):
        for owner in owners:
            taken[owner] += watched.takes_one(owner)
    assert set(taken.values()) == {LIMIT // len(owners)}


def test_a_share_is_free_again_when_others_leave(watched: Watched) -> None:
    watched.takes("one", 10)
    watched.takes("other", 100)
    watched.window(_LONG)
    watched.pass_on("other", 100)
    assert watched.takes("one", 100) == LIMIT - 10


def test_the_limit_falls_further_when_it_was_not_enough(watched: Watched) -> None:
    watched.takes("one", 1000)
    watched.window(_LONG)
    watched.window(_LONG)
    assert watched.limit() == LIMIT, "the calls of before are still in hand"
    watched.pass_on("one", 1000 - LIMIT)
    watched.window(_LONG)
    assert watched.limit() == int(0.8 * LIMIT)
    watched.pass_on("one", LIMIT)
    for _ in range(20):
        watched.window(_LONG)
    assert watched.limit() == LIMIT_MIN


def test_the_overload_ends_when_nobody_is_refused(watched: Watched) -> None:
    watched.takes("one", 100)
    watched.window(_LONG)
    for _ in range(CALM_WINDOWS - 1):
        watched.window(_TURN_S_MAX)
        assert watched.limit() == LIMIT
    assert watched.takes("one", 1) == 0
    for _ in range(CALM_WINDOWS):
        watched.window(_TURN_S_MAX)
        assert watched.limit() == LIMIT, "somebody was refused in the first of these windows"
    watched.window(_TURN_S_MAX)
    assert watched.limit() is None
    assert watched.takes("one", 1000) == 1000


def test_the_limit_rises_while_the_process_waits_for_something_else(watched: Watched) -> None:
    watched.takes("one", 100)
    watched.window(_LONG)
    for _ in range(CALM_WINDOWS):
        assert watched.takes("one", 1) == 0
        watched.window(_SHORT)
    assert watched.limit() == int(1.2 * LIMIT)
    for _ in range(3 * CALM_WINDOWS):
        assert watched.takes("one", 1) == 0
        watched.window(_TURN_S_MAX / 2)
    assert watched.limit() == int(1.2 * LIMIT), "the process has enough to do"


def test_calls_that_wait_for_each_other_are_an_overload(watched: Watched) -> None:
    """This is true even if no turn is long, because calls of other owners would wait for all of them."""
    watched.takes("one", CROWD_MAX)
    watched.window(_TURN_S_MAX / 2)
    assert watched.limit() is None
    watched.takes("one", 1)
    watched.window(_TURN_S_MAX / 2, _TURN_S_MAX / 2, _TURN_S_MAX / 2, _SHORT)
    assert watched.limit() is None, "they wait for something else"
    watched.window(_TURN_S_MAX / 2)
    assert watched.limit() == LIMIT
    assert watched.takes("one", 1) == 0
    assert watched.takes("other", 1) == 1


def test_a_crowd_that_does_not_last_is_no_overload(watched: Watched) -> None:
    watched.takes("one", 1000)
    for _ in range(3):
        watched.now += WINDOW_S / 4
        watched.gate.sample(_TURN_S_MAX / 2, 0)
    watched.pass_on("one", 1000 - CROWD_MAX)
    watched.window(_TURN_S_MAX / 2)
    assert watched.limit() is None


def test_writes_that_pile_up_are_an_overload(watched: Watched) -> None:
    """The limit is `SLOW_DATABASE_LIMIT` if too many ledger writes wait, and `LIMIT` if the turns are
    long too."""
    watched.takes("one", 1000)
    watched.window(_SHORT, backlog=BACKLOG_MAX)
    assert watched.limit() is None
    watched.window(_SHORT, backlog=BACKLOG_MAX + 1)
    assert watched.limit() == SLOW_DATABASE_LIMIT
    assert watched.takes("one", 1) == 0
    watched.window(_LONG, backlog=BACKLOG_MAX + 1)
    assert watched.limit() == LIMIT
    watched.window(_SHORT, backlog=BACKLOG_MAX + 1)
    assert watched.limit() == LIMIT


def test_a_database_that_waits_gets_larger_batches_until_they_pile_up_again(
    watched: Watched,
) -> None:
    watched.takes("one", 1000)
    watched.window(_SHORT, backlog=BACKLOG_MAX + 1)
    raised: float = SLOW_DATABASE_LIMIT
    for _ in range(6):
        for _ in range(CALM_WINDOWS):
            watched.takes("one", 1)
            watched.window(_SHORT)
        raised *= 1.2
    assert watched.limit() == int(raised)
    watched.pass_on("one", 1000)
    watched.window(_SHORT, backlog=BACKLOG_MAX + 1)
    assert watched.limit() == int(0.8 * raised)
    for _ in range(20):
        watched.window(_SHORT, backlog=BACKLOG_MAX + 1)
    assert watched.limit() == SLOW_DATABASE_LIMIT


async def test_a_loop_without_calls_is_not_sampled() -> None:
    """Sampling starts with the first call, and stops after some windows without calls."""
    backlogs = 0

    def backlog() -> int:
        nonlocal backlogs
        backlogs += 1
        return 0

    gate = OverloadGate(60)
    LoopSampler(gate, backlog).start()
    await asyncio.sleep(0.05)
    assert backlogs == 0
    gate.require_room("one")
    async with asyncio.timeout(20):
        while not gate.resting:  # noqa: ASYNC110 - the sampler sets no event
            await asyncio.sleep(0.01)
    found = backlogs
    assert found >= 3 * CALM_WINDOWS
    await asyncio.sleep(0.05)
    assert backlogs == found
    gate.require_room("one")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backlogs == found + 1


async def test_a_loop_that_is_kept_busy_is_overloaded() -> None:
    gate = OverloadGate(0.005)
    LoopSampler(gate, lambda: 0).start()
    gate.require_room("one")
    async with asyncio.timeout(20):
        while gate.limit is None:
            time.sleep(0.01)  # noqa: ASYNC251 - keeps the event loop busy
            await asyncio.sleep(0)
    assert gate.limit == LIMIT


def _flooded(watched: Watched) -> None:
    """Makes the gate overloaded, with `LIMIT` active calls of one owner."""
    watched.takes("flood", 1000)
    watched.window(_LONG)
    watched.pass_on("flood", 1000 - LIMIT)
    assert watched.limit() == LIMIT


def _ask_beside_the_flood(watched: Watched, turn_s: float, *, windows: int = 20) -> None:
    """In each window, checks that a call of the flood is refused and a call of another owner admitted."""
    for _ in range(windows):
        assert watched.takes("flood", 1) == 0
        assert watched.takes("quiet", 1) == 1
        watched.pass_on("quiet", 1)
        watched.window(turn_s)


def test_who_floods_gets_less_while_others_ask_for_little(watched: Watched) -> None:
    """The limit falls so far that turns become short and the few calls of other owners are fast."""
    _flooded(watched)
    _ask_beside_the_flood(watched, _TURN_S_MAX / 2)
    assert watched.limit() == UNEVEN_LIMIT_MIN
    watched.pass_on("flood", LIMIT)
    assert watched.takes("flood", LIMIT) == UNEVEN_LIMIT_MIN
    assert watched.takes("quiet", 1) == 1


def test_a_long_turn_does_not_raise_a_limit_that_was_lowered_for_others(watched: Watched) -> None:
    _flooded(watched)
    _ask_beside_the_flood(watched, _TURN_S_MAX / 2)
    watched.pass_on("flood", LIMIT)
    watched.window(_LONG)
    assert watched.limit() == UNEVEN_LIMIT_MIN


def test_a_flood_is_limited_for_others_also_where_the_turns_are_short(watched: Watched) -> None:
    _flooded(watched)
    _ask_beside_the_flood(watched, _SHORT, windows=CALM_WINDOWS - 1)
    assert watched.limit() == UNEVEN_LIMIT_MIN


def test_owners_who_are_all_refused_keep_the_limit(watched: Watched) -> None:
    owners = ["a", "b", "c"]
    for owner in owners:
        watched.takes(owner, LIMIT)
    watched.window(_LONG)
    for _ in range(20):
        for owner in owners:
            assert watched.takes(owner, 1) == 0
        watched.window(_TURN_S_MAX / 2)
    assert watched.limit() == LIMIT


def test_who_is_not_refused_beside_many_others_does_not_lower_the_limit(watched: Watched) -> None:
    owners = ["a", "b", "c", "d"]
    for owner in owners:
        watched.takes(owner, LIMIT)
    watched.window(_LONG)
    for _ in range(20):
        for owner in owners:
            assert watched.takes(owner, 3) == 0
        assert watched.takes("lucky", 1) == 1
        watched.pass_on("lucky", 1)
        watched.window(_TURN_S_MAX / 2)
    assert watched.limit() == LIMIT


def test_the_limit_comes_back_when_the_others_have_gone(watched: Watched) -> None:
    _flooded(watched)
    _ask_beside_the_flood(watched, _TURN_S_MAX / 2)
    for _ in range(2):
        for _ in range(40):
            assert watched.takes("flood", 1) == 0
            watched.window(_TURN_S_MAX / 3)
        assert watched.limit() == LIMIT, "more than that only wait for each other"


def test_a_limit_does_not_come_back_while_the_process_is_busy(watched: Watched) -> None:
    _flooded(watched)
    watched.window(_LONG)
    lowered = watched.limit()
    for _ in range(20):
        assert watched.takes("flood", 1) == 0
        watched.window(0.9 * _TURN_S_MAX)
    assert watched.limit() == lowered == int(0.8 * LIMIT)


def test_nothing_is_kept_of_who_asked_in_earlier_windows(watched: Watched) -> None:
    _flooded(watched)
    for number in range(100):
        for owner in (f"owner {number}", "flood"):
            with suppress(Unavailable):
                watched.gate.require_room(owner)
    watched.window(_LONG)
    assert watched.gate._asking_owners == set()
    assert watched.gate._refused == {}


async def test_a_long_turn_is_told_before_its_end() -> None:
    """A turn includes the delivery of all waiting results, which may take long. Here it never ends."""
    gate = OverloadGate(0.005)
    LoopSampler(gate, lambda: 0, lambda callback: None).start()
    gate.require_room("one")
    async with asyncio.timeout(20):
        while gate.limit is None:  # noqa: ASYNC110 - the gate sets no event
            await asyncio.sleep(0.001)
    assert gate.limit == LIMIT


async def test_a_turn_that_was_told_before_its_end_is_one_sample() -> None:
    gate = OverloadGate(0.005)
    waiting: list[Callable[[], None]] = []
    LoopSampler(gate, lambda: 0, waiting.append).start()
    gate.require_room("one")
    async with asyncio.timeout(20):
        while len(waiting) < 3:  # noqa: ASYNC110 - the sampler sets no event
            await asyncio.sleep(0.001)
    samples = gate._samples
    waiting[0]()
    assert gate._samples == samples
