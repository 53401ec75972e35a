"""Tests the rate limit for administration requests: it applies to each organization, and refuses
known keys without a database lookup."""

from uuid import uuid4

import pytest

from tests.support.tables import each
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import RateLimited
from tollkeeper.core.runtime.minute_rate import MinuteRate
from tollkeeper.tenants import administration_rate
from tollkeeper.tenants.administration_rate import AdministrationRate

_OURS, _THEIRS = OrganizationId(uuid4()), OrganizationId(uuid4())
# The clock of the tests always shows this time.
_NOW_NS = 10**12


def _rate(per_minute: int) -> AdministrationRate:
    return AdministrationRate(MinuteRate(per_minute, lambda: _NOW_NS))


def test_who_is_refused_is_told_when_to_come_again() -> None:
    rate = _rate(7)
    for _ in range(7):
        rate.take(_OURS, "ours")
    with pytest.raises(RateLimited) as refusal:
        rate.take(_OURS, "ours")
    assert refusal.value.retry_after_s == 9
    rate.take(_THEIRS, "theirs")


def test_a_known_key_without_room_is_refused_before_it_is_looked_up() -> None:
    rate = _rate(2)
    rate.take(_OURS, "ours")
    for _ in range(5):
        rate.require_room("ours")  # takes no token from the bucket
    rate.take(_OURS, "another of ours")
    for known in ("ours", "another of ours"):
        with pytest.raises(RateLimited):
            rate.require_room(known)
    rate.require_room("never seen")


def test_keys_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration_rate, "_KEYS_MAX", 3)
    rate = _rate(5)
    for number in range(5):
        rate.take(_OURS, f"key {number}")
    rate.require_room("key 1")
    with pytest.raises(RateLimited):
        rate.require_room("key 2")


@each(("body_bytes", "requests"), [(0, 9), (4095, 9), (4096, 8), (20_000, 5)])
def test_a_body_weighs_as_much_as_requests(body_bytes: int, requests: int) -> None:
    rate = _rate(10)
    rate.take(_OURS, "ours")
    rate.count_body(_OURS, body_bytes)
    for _ in range(requests):
        rate.take(_OURS, "ours")
    with pytest.raises(RateLimited):
        rate.take(_OURS, "ours")


def test_no_body_weighs_more_than_a_few_requests() -> None:
    rate = _rate(100)
    rate.count_body(_OURS, 32 << 20)
    for _ in range(68):
        rate.take(_OURS, "ours")
    with pytest.raises(RateLimited):
        rate.take(_OURS, "ours")
