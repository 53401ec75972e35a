"""Computes statistics about a policy's values for sample texts: a histogram, and for labelled texts
the threshold that best separates texts labelled yes from texts labelled no.

The value of a text is the judge's score, or the calibrated probability, in basis points. The judge
is the model that answers the policy's question; this module does not call it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tollkeeper.domain.calibration import Calibration, LabelledScore
from tollkeeper.domain.percent import BASIS_POINTS

BINS = 10
_BIN_WIDTH = BASIS_POINTS // BINS
# The lowest and the highest possible threshold, in basis points.
THRESHOLD_MIN = 1
THRESHOLD_MAX = BASIS_POINTS - 1
# 10 %, 20 % and so on, up to 90 %.
_ROUND_THRESHOLDS = range(_BIN_WIDTH, BASIS_POINTS, _BIN_WIDTH)


@dataclass(frozen=True, slots=True)
class Sample:
    """Contains a sample text, its label if it has one, and its value
    (`probability_basis_points`), which is None if the judge gave no score."""

    text: str
    label: bool | None
    probability_basis_points: int | None
    # The raw score, which is the log-odds of yes.
    score: float | None = None


def labelled(samples: Iterable[Sample]) -> list[LabelledScore]:
    return [
        LabelledScore(sample.score, sample.label)
        for sample in samples
        if sample.score is not None and sample.label is not None
    ]


def labelled_values(samples: Iterable[Sample]) -> tuple[list[int], list[int]]:
    """Returns the values of the texts labelled yes, and the values of the texts labelled no."""
    values: dict[bool, list[int]] = {True: [], False: []}
    for sample in samples:
        if sample.label is not None and sample.probability_basis_points is not None:
            values[sample.label].append(sample.probability_basis_points)
    return values[True], values[False]


def calibrated(samples: Iterable[Sample], calibration: Calibration) -> tuple[Sample, ...]:
    return tuple(
        sample
        if sample.score is None
        else replace(sample, probability_basis_points=calibration.basis_points(sample.score))
        for sample in samples
    )


@dataclass(frozen=True, slots=True)
class Bin:
    """Counts the texts, by label, whose values lie between `start_basis_points` and the start of
    the next bin."""

    start_basis_points: int
    yes: int
    no: int
    unlabelled: int

    @property
    def count(self) -> int:
        return self.yes + self.no + self.unlabelled


@dataclass(frozen=True, slots=True)
class Cut:
    """Counts how often matches and labels agree or differ at one threshold. A text matches if its
    value is at least the threshold."""

    threshold_basis_points: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        """Returns the share of matching texts that are labelled yes; 1 if no text matches."""
        matched = self.true_positives + self.false_positives
        return self.true_positives / matched if matched else 1.0

    @property
    def recall(self) -> float:
        """Returns the share of texts labelled yes that match; 1 if no text is labelled yes."""
        labelled_yes = self.true_positives + self.false_negatives
        return self.true_positives / labelled_yes if labelled_yes else 1.0

    @property
    def f1(self) -> float:
        doubled = 2 * self.true_positives
        total = doubled + self.false_positives + self.false_negatives
        return doubled / total if total else 0.0

    @property
    def accuracy(self) -> float:
        right = self.true_positives + self.true_negatives
        return right / (right + self.false_positives + self.false_negatives)


@dataclass(frozen=True, slots=True)
class Separation:
    """Tells how well thresholds separate the labelled texts."""

    # The best cut.
    suggested: Cut
    # The best cut, and other cuts for comparison, in the order of their thresholds.
    cuts: tuple[Cut, ...]
    # The area under the ROC curve: the probability that a random text labelled yes has a higher
    # value than a random text labelled no.
    auc: float


def histogram(samples: Sequence[Sample]) -> tuple[Bin, ...]:
    counts = [[0, 0, 0] for _ in range(BINS)]
    for sample in samples:
        if sample.probability_basis_points is not None:
            number = min(sample.probability_basis_points // _BIN_WIDTH, BINS - 1)
            counts[number][2 if sample.label is None else 1 - sample.label] += 1
    return tuple(Bin(number * _BIN_WIDTH, *by_label) for number, by_label in enumerate(counts))


def separate(samples: Sequence[Sample], *compared: int) -> Separation | None:
    """Finds the best threshold. Returns None unless both labels have at least one text with a
    value. The result also shows the thresholds 10 %, 20 % and so on, and those in `compared`."""
    values = _LabelledValues(samples)
    if not values.yes or not values.no:
        return None
    # Among cuts with equal F1, the higher precision wins, and then the higher threshold: missing a
    # match is less harmful than denying an acceptable text.
    suggested = max(
        (values.cut(threshold) for threshold in values.thresholds()),
        key=lambda cut: (cut.f1, cut.precision, cut.threshold_basis_points),
    )
    thresholds = {*_ROUND_THRESHOLDS, *compared, suggested.threshold_basis_points}
    return Separation(suggested, tuple(map(values.cut, sorted(thresholds))), values.auc())


class _LabelledValues:
    """Contains the sorted values of labelled texts."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        rated = [
            (sample.probability_basis_points, sample.label)
            for sample in samples
            if sample.probability_basis_points is not None and sample.label is not None
        ]
        self.yes = sorted(probability for probability, label in rated if label)
        self.no = sorted(probability for probability, label in rated if not label)

    def thresholds(self) -> list[int]:
        """Returns one threshold for each way to separate the texts. Each threshold is halfway
        between two neighbouring values, because the values of future texts will be slightly
        different."""
        values = sorted({*self.yes, *self.no})
        below = [THRESHOLD_MIN - 1, *values[:-1]]
        middles = [(low + high + 1) // 2 for low, high in zip(below, values, strict=True)]
        return [min(max(middle, THRESHOLD_MIN), THRESHOLD_MAX) for middle in middles]

    def cut(self, threshold: int) -> Cut:
        missed, passed = bisect_left(self.yes, threshold), bisect_left(self.no, threshold)
        return Cut(
            threshold_basis_points=threshold,
            true_positives=len(self.yes) - missed,
            false_positives=len(self.no) - passed,
            false_negatives=missed,
            true_negatives=passed,
        )

    def auc(self) -> float:
        """Returns the area under the ROC curve. A pair with labels yes and no but equal values
        counts half."""
        wins = 0.0
        for probability in self.yes:
            below = bisect_left(self.no, probability)
            wins += below + (bisect_right(self.no, probability) - below) / 2
        return wins / (len(self.yes) * len(self.no))
