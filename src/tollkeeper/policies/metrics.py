"""Metrics of verdicts. There's no label for the policy, because there may be any number of them;
the database has each policy's verdicts."""

from collections import Counter as Tally
from collections.abc import Iterable
from enum import StrEnum
from itertools import product

from prometheus_client import Counter, Histogram

from tollkeeper.core.activity import VerdictRecord
from tollkeeper.policies.policy import Direction, Mode

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)
_VERDICTS = Counter(
    "tollkeeper_policy_verdicts",
    "Policy verdicts, by mode, direction and outcome.",
    ["mode", "direction", "outcome"],
)
_SECONDS = Histogram(
    "tollkeeper_policy_seconds",
    "Seconds until the judge had answered all questions about one text.",
    ["mode", "direction"],
    buckets=_BUCKETS_S,
)


class Outcome(StrEnum):
    MATCHED = "matched"
    PASSED = "passed"
    # For example, the judge didn't answer in time.
    MISSING = "missing"


def begin_counting() -> None:
    """At 0, so alert rules notice the first verdict of its kind."""
    for labels in product(Mode, (Direction.REQUEST, Direction.RESPONSE), Outcome):
        _VERDICTS.labels(*labels)


def count_verdicts(verdicts: Iterable[VerdictRecord]) -> None:
    tally = Tally((verdict.mode, verdict.direction, _outcome(verdict)) for verdict in verdicts)
    for labels, number in tally.items():
        _VERDICTS.labels(*labels).inc(number)


def count_missing(mode: str, direction: str, number: int) -> None:
    _VERDICTS.labels(mode, direction, Outcome.MISSING).inc(number)


def count_seconds(mode: str, direction: str, seconds: float) -> None:
    _SECONDS.labels(mode, direction).observe(seconds)


def _outcome(verdict: VerdictRecord) -> Outcome:
    if verdict.probability_basis_points is None:
        return Outcome.MISSING
    return Outcome.MATCHED if verdict.matched else Outcome.PASSED
