"""Statistics of a policy's values (scores or calibrated probabilities, in basis points) for sample texts: a
histogram, and the threshold that best separates yes from no."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tollkeeper.core.percent import BASIS_POINTS
from tollkeeper.policies.calibration.rule import Calibration, LabelledScore

BINS = 10
_BIN_WIDTH = BASIS_POINTS // BINS
# In basis points.
THRESHOLD_MIN = 1
THRESHOLD_MAX = BASIS_POINTS - 1
_ROUND_THRESHOLDS = range(_BIN_WIDTH, BASIS_POINTS, _BIN_WIDTH)


@dataclass(frozen=True, slots=True)
class Sample:
    """The value, `probability_basis_points`, is None if the judge gave no score."""

    text: str
    label: bool | None
    probability_basis_points: int | None
    # The log-odds of yes.
    score: float | None = None


def labelled(samples: Iterable[Sample]) -> list[LabelledScore]:
    return [
        LabelledScore(sample.score, sample.label)
        for sample in samples
        if sample.score is not None and sample.label is not None
    ]


def labelled_values(samples: Iterable[Sample]) -> tuple[list[int], list[int]]:
    """Of yes, and of no."""
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
    """From `start_basis_points` to the next bin, by label."""

    start_basis_points: int
    yes: int
    no: int
    unlabelled: int

    @property
    def count(self) -> int:
        return self.yes + self.no + self.unlabelled


@dataclass(frozen=True, slots=True)
class Cut:
    """How matches and labels agree at one threshold. A value at the threshold matches."""

    threshold_basis_points: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        """1 if no text matches."""
        matched = self.true_positives + self.false_positives
        return self.true_positives / matched if matched else 1.0

    @property
    def recall(self) -> float:
        """1 if no text is labelled yes."""
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
    suggested: Cut
    # The best and those it is compared with, by threshold.
    cuts: tuple[Cut, ...]
    # The area under the ROC curve: a random yes has a higher value than a random no.
    auc: float


def histogram(samples: Sequence[Sample]) -> tuple[Bin, ...]:
    counts = [[0, 0, 0] for _ in range(BINS)]
    for sample in samples:
        if sample.probability_basis_points is not None:
            number = min(sample.probability_basis_points // _BIN_WIDTH, BINS - 1)
            counts[number][2 if sample.label is None else 1 - sample.label] += 1
    return tuple(Bin(number * _BIN_WIDTH, *by_label) for number, by_label in enumerate(counts))


def separate(samples: Sequence[Sample], *compared: int) -> Separation | None:
    """None unless both labels have a text with a value. Shows 10 %, 20 % and so on, and `compared`, too."""
    values = _LabelledValues(samples)
    if not values.yes or not values.no:
        return None
    # With equal F1 the higher precision wins, then the higher threshold: missing a match harms less than
    # denying an acceptable text.
    suggested = max(
        (values.cut(threshold) for threshold in values.thresholds()),
        key=lambda cut: (cut.f1, cut.precision, cut.threshold_basis_points),
    )
    thresholds = {*_ROUND_THRESHOLDS, *compared, suggested.threshold_basis_points}
    return Separation(suggested, tuple(map(values.cut, sorted(thresholds))), values.auc())


class _LabelledValues:
    def __init__(self, samples: Iterable[Sample]) -> None:
        rated = [
            (sample.probability_basis_points, sample.label)
            for sample in samples
            if sample.probability_basis_points is not None and sample.label is not None
        ]
        self.yes = sorted(probability for probability, label in rated if label)
        self.no = sorted(probability for probability, label in rated if not label)

    def thresholds(self) -> list[int]:
        """One for each way to separate the texts, halfway between neighbours, because later values will
        differ a little."""
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
        """Equal values count half."""
        wins = 0.0
        for probability in self.yes:
            below = bisect_left(self.no, probability)
            wins += below + (bisect_right(self.no, probability) - below) / 2
        return wins / (len(self.yes) * len(self.no))
