"""What a rule's probabilities on sample texts say about it: how they spread, and with labels, which
threshold tells yes from no best. Pure arithmetic; nothing here asks a judge."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tollkeeper.domain.judging import BASIS_POINTS

BINS = 10
_BIN_WIDTH = BASIS_POINTS // BINS
THRESHOLD_MIN = 1
THRESHOLD_MAX = BASIS_POINTS - 1
_ROUND_THRESHOLDS = range(_BIN_WIDTH, BASIS_POINTS, _BIN_WIDTH)


@dataclass(frozen=True, slots=True)
class Sample:
    """A text with what the judge found; None where it found nothing."""

    text: str
    label: bool | None
    probability_basis_points: int | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Probabilities from `start` up to the next bin, by label."""

    start_basis_points: int
    yes: int
    no: int
    unlabelled: int

    @property
    def count(self) -> int:
        return self.yes + self.no + self.unlabelled


@dataclass(frozen=True, slots=True)
class Cut:
    """How labels and matches agree at one threshold."""

    threshold_basis_points: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        """Of what matches, the share that should; 1 where nothing matches."""
        matched = self.true_positives + self.false_positives
        return self.true_positives / matched if matched else 1.0

    @property
    def recall(self) -> float:
        """Of what should match, the share that does."""
        wanted = self.true_positives + self.false_negatives
        return self.true_positives / wanted if wanted else 1.0

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
class Calibration:
    """What labels add: the best cut, some others to compare it with, and the chance that a random
    yes is rated above a random no."""

    suggested: Cut
    cuts: tuple[Cut, ...]
    auc: float


def histogram(samples: Sequence[Sample]) -> tuple[Bin, ...]:
    counts = [[0, 0, 0] for _ in range(BINS)]
    for sample in samples:
        if sample.probability_basis_points is not None:
            place = min(sample.probability_basis_points // _BIN_WIDTH, BINS - 1)
            counts[place][2 if sample.label is None else 1 - sample.label] += 1
    return tuple(Bin(place * _BIN_WIDTH, *found) for place, found in enumerate(counts))


def calibrate(samples: Sequence[Sample], *compared: int) -> Calibration | None:
    """None without at least one text of each label that could be judged. `compared` are thresholds
    that the table has beside the round ones and the suggested one."""
    ratings = _Ratings(samples)
    if not ratings.yes or not ratings.no:
        return None
    # Equally good cuts: rather miss a match than deny what is fine.
    suggested = max(
        (ratings.cut(threshold) for threshold in ratings.thresholds()),
        key=lambda cut: (cut.f1, cut.precision, cut.threshold_basis_points),
    )
    table = {*_ROUND_THRESHOLDS, *compared, suggested.threshold_basis_points}
    return Calibration(suggested, tuple(map(ratings.cut, sorted(table))), ratings.auc())


class _Ratings:
    """The probabilities of labelled texts, sorted."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        rated = [
            (sample.probability_basis_points, sample.label)
            for sample in samples
            if sample.probability_basis_points is not None and sample.label is not None
        ]
        self.yes = sorted(probability for probability, label in rated if label)
        self.no = sorted(probability for probability, label in rated if not label)

    def thresholds(self) -> list[int]:
        """One for each way to part the texts: in the middle between two neighbours, because the
        next text will lie a little beside those that were tried."""
        found = sorted({*self.yes, *self.no})
        below = [THRESHOLD_MIN - 1, *found[:-1]]
        middles = [(low + high + 1) // 2 for low, high in zip(below, found, strict=True)]
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
        """Equal ratings are half a win."""
        wins = 0.0
        for probability in self.yes:
            below = bisect_left(self.no, probability)
            wins += below + (bisect_right(self.no, probability) - below) / 2
        return wins / (len(self.yes) * len(self.no))
