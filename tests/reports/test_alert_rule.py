"""Tests that each change of an alert's state is reported once."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.reports.alerts.rule import (
    AlertKind,
    AlertState,
    Condition,
    RaisedAlert,
    changes,
    level_of,
)


def _condition(percent: int, key: str = "k") -> Condition:
    return Condition(key, AlertKind.CAP, {"organization_id": "o"}, "detail", percent)


@each(
    ("percent", "raised", "level"),
    [
        (79, 0, 0),
        (80, 0, 80),
        (99, 0, 80),
        (100, 0, 100),
        (250, 0, 100),
        (100, 80, 100),
        (79, 80, 80),
        (75, 80, 80),
        (74, 80, 0),
        (96, 100, 100),
        (94, 100, 80),
        (10, 100, 0),
    ],
)
def test_levels(percent: int, raised: int, level: int) -> None:
    assert level_of(percent, raised) == level


@given(st.lists(st.integers(0, 130), max_size=40))
def test_a_state_that_stays_is_told_once(percents: list[int]) -> None:
    raised: dict[str, RaisedAlert] = {}
    for percent in percents:
        for change in changes([_condition(percent)], raised):
            known = raised.get(change.alert.key)
            if change.state is AlertState.CLEARED:
                assert known is not None
                del raised[change.alert.key]
            else:
                assert known is None or known.level != change.alert.level
                raised[change.alert.key] = change.alert
        # The same condition again changes nothing.
        assert changes([_condition(percent)], raised) == []
        assert bool(raised) is (percent >= 80 or (bool(raised) and percent >= 75))


def test_what_is_no_longer_there_is_cleared() -> None:
    (first,) = changes([_condition(100)], {})
    assert (first.state, first.alert.level) == (AlertState.RAISED, 100)
    (second,) = changes([], {"k": first.alert})
    assert (second.state, second.alert) == (AlertState.CLEARED, first.alert)
    (third,) = changes([_condition(100, "other")], {})
    assert third.alert.key == "other"
