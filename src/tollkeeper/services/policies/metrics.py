"""Defines metrics of verdicts by mode, side and outcome. Single policies have no label, because
their number is unlimited; the verdicts of each policy are in the database."""

from collections import Counter as Tally
from collections.abc import Iterable
from enum import StrEnum

from prometheus_client import Counter, Histogram

from tollkeeper.domain.activity import VerdictRecord

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)
_VERDICTS = Counter(
    "tollkeeper_policy_verdicts",
    "Questions that policies asked, by outcome.",
    ["mode", "direction", "outcome"],
)
_SECONDS = Histogram(
    "tollkeeper_policy_seconds",
    "Seconds until all verdicts on one text were in.",
    ["mode", "direction"],
    buckets=_BUCKETS_S,
)


class Outcome(StrEnum):
    MATCHED = "matched"
    PASSED = "passed"
    MISSING = "missing"


def count_verdicts(verdicts: Iterable[VerdictRecord]) -> None:
    tally = Tally((verdict.mode, verdict.direction, _outcome(verdict)) for verdict in verdicts)
    for labels, number in tally.items():
        _VERDICTS.labels(*labels).inc(number)


def count_seconds(mode: str, direction: str, seconds: float) -> None:
    _SECONDS.labels(mode, direction).observe(seconds)


def _outcome(verdict: VerdictRecord) -> Outcome:
    if verdict.probability_basis_points is None:
        return Outcome.MISSING
    return Outcome.MATCHED if verdict.matched else Outcome.PASSED
