"""Tests the rate limit of each owner: all uses of a minute may come at once, and times are exact."""

import pytest

from tollkeeper.core.runtime import minute_rate
from tollkeeper.core.runtime.minute_rate import NS_PER_S, MinuteRate


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * NS_PER_S

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _used(rate: MinuteRate, attempts: int, owner: str = "ours") -> int:
    """Uses the rate `attempts` times, and returns the number of uses that were allowed."""
    used = 0
    for _ in range(attempts):
        if not rate.wait_ns(owner):
            used += 1
        rate.use(owner)
    return used


def test_a_minutes_worth_may_come_at_once_and_comes_back(clock: Clock) -> None:
    rate = MinuteRate(30, clock)
    assert _used(rate, 100) == 30
    clock.pass_s(2)
    assert _used(rate, 100) == 1
    clock.pass_s(20)
    assert _used(rate, 100) == 10
    # Unused uses are saved for at most one minute.
    clock.pass_s(3600)
    assert _used(rate, 100) == 30


@pytest.mark.parametrize("per_minute", [1, 7, 600, 999_999])
def test_as_many_as_the_rate_and_no_more(clock: Clock, per_minute: int) -> None:
    rate = MinuteRate(per_minute, clock)
    at_once = max(0, per_minute - 1000)
    rate.use("ours", times=at_once)
    assert _used(rate, 1010) == per_minute - at_once


@pytest.mark.parametrize("per_minute", [1, 6, 7, 999_999])
def test_how_long_to_wait_is_exact(clock: Clock, per_minute: int) -> None:
    rate = MinuteRate(per_minute, clock)
    rate.use("ours", times=per_minute)
    wait_ns = rate.wait_ns("ours")
    assert wait_ns == -(-60 * NS_PER_S // per_minute)
    clock.now_ns += wait_ns - 1
    assert rate.wait_ns("ours") == 1
    clock.now_ns += 1
    assert rate.wait_ns("ours") == 0


def test_owners_have_rates_of_their_own(clock: Clock) -> None:
    rate = MinuteRate(5, clock)
    assert _used(rate, 10) == 5
    assert _used(rate, 10, "theirs") == 5


def test_what_is_kept_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minute_rate, "_OWNERS_MAX", 10)
    rate = MinuteRate(1, clock)
    owners = [f"owner {number}" for number in range(30)]
    for owner in owners:
        rate.use(owner)
    assert len(rate) == 10
    # The owners that were active last are kept.
    assert [_used(rate, 1, owner) for owner in owners[-10:]] == [0] * 10


def test_a_use_may_weigh_as_much_as_several(clock: Clock) -> None:
    rate = MinuteRate(10, clock)
    rate.use("ours", times=7)
    assert _used(rate, 10) == 3
    clock.pass_s(60)
    # One use may weigh more than is left. The next use then waits until the excess is over.
    rate.use("ours", times=25)
    assert rate.wait_ns("ours") == 96 * NS_PER_S
