"""Tests when a replica is ejected and when it is healthy again. The tests set the time themselves."""

from tollkeeper.providers.health import AttemptKind, EjectionRule, ReplicaHealth

RULE = EjectionRule(failures_to_eject=3, ejection_s=1.0, ejection_s_max=10.0)


def ejected(now: float = 0.0) -> ReplicaHealth:
    health = ReplicaHealth(RULE)
    for _ in range(3):
        health.failed(health.begin(now), now)
    assert health.state == "ejected"
    return health


def test_only_failures_in_a_row_eject() -> None:
    health = ReplicaHealth(RULE)
    for _ in range(10):
        health.failed(health.begin(0), 0)
        health.failed(health.begin(0), 0)
        health.succeeded(health.begin(0))
    assert health.admits(0)
    for _ in range(3):
        assert health.admits(0)
        health.failed(health.begin(0), 0)
    assert not health.admits(0.99)
    assert health.admits(1.0)


def test_one_probe_at_a_time() -> None:
    health = ejected()
    assert health.begin(1.0) is AttemptKind.PROBE
    assert health.state == "probing"
    assert not health.admits(1.0)
    assert not health.admits(1.99)


def test_a_probe_that_answers_heals() -> None:
    health = ejected()
    health.succeeded(health.begin(1.0))
    assert health.state == "healthy"
    assert health.begin(1.0) is AttemptKind.NORMAL


def test_the_time_doubles_up_to_a_bound_and_starts_anew_after_healing() -> None:
    health = ejected()
    now = 0.0
    for wait_s in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert not health.admits(now + wait_s - 0.01)
        now += wait_s
        assert health.admits(now)
        health.failed(health.begin(now), now)
    health.succeeded(health.begin(now + 10))
    now += 10
    for _ in range(3):
        health.failed(health.begin(now), now)
    assert health.admits(now + 1.0)


def test_calls_that_were_under_way_do_not_prolong_an_ejection() -> None:
    health = ejected()
    for _ in range(20):
        health.failed(AttemptKind.NORMAL, 0.9)
    assert health.admits(1.0)
    probe = health.begin(1.0)
    health.failed(AttemptKind.NORMAL, 1.1)
    health.succeeded(AttemptKind.NORMAL)
    assert health.state == "probing"
    health.succeeded(probe)
    assert health.state == "healthy"


def test_an_abandoned_probe_makes_room_for_the_next() -> None:
    health = ejected()
    health.abandoned(health.begin(1.0), 1.1)
    assert health.admits(1.1)
    assert health.begin(1.1) is AttemptKind.PROBE


def test_a_probe_that_hangs_does_not_hold_up_the_next_for_ever() -> None:
    health = ejected()
    hanging = health.begin(1.0)
    assert health.admits(2.0)
    health.succeeded(health.begin(2.0))
    health.failed(hanging, 3.0)
    assert health.state == "healthy"


def test_the_last_failure_is_known_until_a_call_succeeds() -> None:
    health = ReplicaHealth(RULE)
    for number in range(3):
        health.failed(health.begin(0), 0, reason=f"failure {number}")
    assert (health.state, health.last_failure) == ("ejected", "failure 2")
    health.succeeded(health.begin(1.0))
    assert (health.state, health.last_failure) == ("healthy", "")


def test_a_last_healthy_replica_that_fails_is_kept_until_a_call_succeeds() -> None:
    health = ReplicaHealth(RULE)
    for _ in range(2):
        health.failed(health.begin(0), 0, is_last_healthy=True)
        assert not health.is_failing
    health.failed(health.begin(0), 0, is_last_healthy=True)
    assert (health.state, health.shown_state) == ("healthy", "failing")
    health.succeeded(health.begin(0))
    assert not health.is_failing


def test_a_kept_replica_is_ejected_once_another_is_healthy() -> None:
    health = ReplicaHealth(RULE)
    for _ in range(3):
        health.failed(health.begin(0), 0, is_last_healthy=True)
    health.failed(health.begin(0), 0)
    assert (health.state, health.is_failing) == ("ejected", False)
