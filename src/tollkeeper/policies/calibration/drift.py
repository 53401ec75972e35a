"""Compares a policy's recent calibrated probabilities with those at its calibration, which may be
outdated if they differ too much."""

from dataclasses import dataclass

from tollkeeper.policies.calibration.drift_store import ValueCounts
from tollkeeper.policies.calibration.rule import stability_index

# The usual threshold of the population stability index for different distributions.
DRIFTED_FROM = 0.25
# With fewer, the index can be large by chance.
_VALUES_MIN = 200


@dataclass(frozen=True, slots=True)
class Drift:
    counts: ValueCounts
    # The population stability index; None if there are too few values.
    index: float | None

    @property
    def is_large(self) -> bool:
        return self.index is not None and self.index >= DRIFTED_FROM

    @property
    def values(self) -> int:
        """The recent ones."""
        return sum(self.counts.now)


def drift_of(counts: ValueCounts) -> Drift:
    enough = sum(counts.now) >= _VALUES_MIN and sum(counts.at_calibration) > 0
    return Drift(counts, stability_index(counts.at_calibration, counts.now) if enough else None)
