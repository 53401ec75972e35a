"""The rate of administration: by organization, over a minute, and without the database where it can."""

from uuid import uuid4

import pytest

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import RateLimited
from tollkeeper.services.tenants import administration_rate
from tollkeeper.services.tenants.administration_rate import AdministrationRate

_SECOND = 1_000_000_000
_OURS, _THEIRS = OrganizationId(uuid4()), OrganizationId(uuid4())


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> int:
        return int(self.now_s * _SECOND)


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def _taken(rate: AdministrationRate, attempts: int, organization: OrganizationId = _OURS) -> int:
    """How many of the attempts are let through."""
    taken = 0
    for _ in range(attempts):
        try:
            rate.take(organization, f"key of {organization}")
        except RateLimited:
            continue
        taken += 1
    return taken


def test_a_minutes_worth_may_come_at_once_and_comes_back(clock: _Clock) -> None:
    rate = AdministrationRate(30, clock)
    assert _taken(rate, 100) == 30
    clock.now_s += 2
    assert _taken(rate, 100) == 1
    clock.now_s += 20
    assert _taken(rate, 100) == 10
    # What is not used for longer than a minute is not saved up.
    clock.now_s += 3600
    assert _taken(rate, 100) == 30


@pytest.mark.parametrize("per_minute", [1, 7, 600, 999_999])
def test_never_more_than_the_rate(clock: _Clock, per_minute: int) -> None:
    rate = AdministrationRate(per_minute, clock)
    assert _taken(rate, per_minute + 10) == per_minute


def test_who_is_refused_is_told_when_to_come_again(clock: _Clock) -> None:
    rate = AdministrationRate(6, clock)
    _taken(rate, 6)
    clock.now_s += 2.5
    with pytest.raises(RateLimited) as refusal:
        rate.take(_OURS, "key")
    assert refusal.value.retry_after_s == 8
    clock.now_s += 8
    rate.take(_OURS, "key")


def test_organizations_have_rates_of_their_own(clock: _Clock) -> None:
    rate = AdministrationRate(5, clock)
    assert _taken(rate, 10) == 5
    assert _taken(rate, 10, _THEIRS) == 5


def test_a_known_key_without_room_is_refused_before_it_is_looked_up(clock: _Clock) -> None:
    rate = AdministrationRate(2, clock)
    rate.take(_OURS, "ours")
    for _ in range(5):
        rate.require_room("ours")  # It takes nothing.
    rate.take(_OURS, "another of ours")
    for known in ("ours", "another of ours"):
        with pytest.raises(RateLimited):
            rate.require_room(known)
    rate.require_room("never seen")
    clock.now_s += 30
    rate.require_room("ours")


def test_what_is_kept_is_bounded(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration_rate, "_KEPT_MAX", 10)
    rate = AdministrationRate(1, clock)
    organizations = [OrganizationId(uuid4()) for _ in range(30)]
    for organization in organizations:
        rate.take(organization, f"key of {organization}")
    # Those that were used last are still known.
    assert [_taken(rate, 1, organization) for organization in organizations[-10:]] == [0] * 10
    assert len(rate._owners) == len(rate._used_until) == 10
