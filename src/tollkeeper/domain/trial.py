"""Computes statistics of a rule's values on sample texts: a histogram, and for labelled texts the
threshold that separates yes from no best. Does not ask a judge."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tollkeeper.domain.calibration import Calibration, Labelled
from tollkeeper.domain.percent import BASIS_POINTS

BINS = 10
_BIN_WIDTH = BASIS_POINTS // BINS
THRESHOLD_MIN = 1
THRESHOLD_MAX = BASIS_POINTS - 1
_ROUND_THRESHOLDS = range(_BIN_WIDTH, BASIS_POINTS, _BIN_WIDTH)


@dataclass(frozen=True, slots=True)
class Sample:
    """Contains a text with the judge's score, raw or calibrated; None if the judge gave none."""

    text: str
    label: bool | None
    probability_basis_points: int | None
    # The log-odds of yes.
    score: float | None = None


def labelled(samples: Iterable[Sample]) -> list[Labelled]:
    return [
        Labelled(sample.score, sample.label)
        for sample in samples
        if sample.score is not None and sample.label is not None
    ]


def labelled_values(samples: Iterable[Sample]) -> tuple[list[int], list[int]]:
    """Returns the values of texts labelled yes, and those of texts labelled no."""
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
    """Counts probabilities from `start` up to the next bin, by label."""

    start_basis_points: int
    yes: int
    no: int
    unlabelled: int

    @property
    def count(self) -> int:
        return self.yes + self.no + self.unlabelled


@dataclass(frozen=True, slots=True)
class Cut:
    """Measures how well labels and matches agree at one threshold."""

    threshold_basis_points: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        """Returns the share of matches that are labelled yes; 1 if nothing matches."""
        matched = self.true_positives + self.false_positives
        return self.true_positives / matched if matched else 1.0

    @property
    def recall(self) -> float:
        """Returns the share of texts labelled yes that match; 1 if there are none."""
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
    """Contains results for labelled texts: the best cut, other cuts to compare it with, and the
    area under the ROC curve, which is the probability that a random yes is rated above a random
    no."""

    suggested: Cut
    cuts: tuple[Cut, ...]
    auc: float


def histogram(samples: Sequence[Sample]) -> tuple[Bin, ...]:
    counts = [[0, 0, 0] for _ in range(BINS)]
    for sample in samples:
        if sample.probability_basis_points is not None:
            number = min(sample.probability_basis_points // _BIN_WIDTH, BINS - 1)
            counts[number][2 if sample.label is None else 1 - sample.label] += 1
    return tuple(Bin(number * _BIN_WIDTH, *by_label) for number, by_label in enumerate(counts))


def separate(samples: Sequence[Sample], *compared: int) -> Separation | None:
    """Returns None unless each label has at least one text with a probability. `compared` are
    thresholds to show in addition to the round ones and the suggested one."""
    ratings = _Ratings(samples)
    if not ratings.yes or not ratings.no:
        return None
    # Among cuts with equal F1, higher precision wins, then the higher threshold, because missing a
    # match is better than denying an acceptable text.
    suggested = max(
        (ratings.cut(threshold) for threshold in ratings.thresholds()),
        key=lambda cut: (cut.f1, cut.precision, cut.threshold_basis_points),
    )
    table = {*_ROUND_THRESHOLDS, *compared, suggested.threshold_basis_points}
    return Separation(suggested, tuple(map(ratings.cut, sorted(table))), ratings.auc())


class _Ratings:
    """Holds the probabilities of labelled texts, sorted."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        rated = [
            (sample.probability_basis_points, sample.label)
            for sample in samples
            if sample.probability_basis_points is not None and sample.label is not None
        ]
        self.yes = sorted(probability for probability, label in rated if label)
        self.no = sorted(probability for probability, label in rated if not label)

    def thresholds(self) -> list[int]:
        """Returns one threshold for each way to separate the texts. It lies halfway between two
        neighbouring probabilities, because other texts will have slightly different ones."""
        ratings = sorted({*self.yes, *self.no})
        below = [THRESHOLD_MIN - 1, *ratings[:-1]]
        middles = [(low + high + 1) // 2 for low, high in zip(below, ratings, strict=True)]
        return [min(max(middle, THRESHOLD_MIN), THRESHOLD_MAX) for middle in middles]

    def cut(self, threshold: int) -> Cut:
        missed, rejected = bisect_left(self.yes, threshold), bisect_left(self.no, threshold)
        return Cut(
            threshold_basis_points=threshold,
            true_positives=len(self.yes) - missed,
            false_positives=len(self.no) - rejected,
            false_negatives=missed,
            true_negatives=rejected,
        )

    def auc(self) -> float:
        """Returns the area under the curve. A yes and a no with the same probability count as
        half."""
        wins = 0.0
        for probability in self.yes:
            below = bisect_left(self.no, probability)
            wins += below + (bisect_right(self.no, probability) - below) / 2
        return wins / (len(self.yes) * len(self.no))
