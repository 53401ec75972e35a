"""Converts the judge's raw scores to probabilities, measures how good they are, and finds thresholds with
guaranteed error rates.

A raw score is the log-odds of "yes". A calibration maps scores to probabilities monotonically, fitted on
labelled texts: a line in log-odds for few labels, isotonic regression for many.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.percent import BASIS_POINTS

LABELS_MIN = 10
CONFIDENCE = 0.95
# From here on, isotonic regression fits better than a line.
_ISOTONIC_FROM = 200
# The probability of a larger score differs from 0 or 1 by less than 1e-9.
SCORE_MAX = 23.0
# Of cross-validation.
_FOLDS = 5
_BINS = 10
_NEWTON_STEPS = 50
# How often `guaranteed_rate` halves its search interval.
_HALVINGS = 24
_PERCENT = BASIS_POINTS // 100


class LabelledScore(msgspec.Struct, frozen=True):
    """The label is the right answer to the policy's question."""

    score: float
    is_yes: bool


class Shape(StrEnum):
    LINE = "line"
    STEPS = "steps"


class Calibration(msgspec.Struct, frozen=True):
    """A line has its slope and offset in `points[0]`. Steps have a corner per point, a score and its
    probability, and are linear between two corners."""

    shape: Shape
    points: tuple[tuple[float, float], ...]

    def probability(self, score: float) -> float:
        if self.shape is Shape.LINE:
            ((slope, offset),) = self.points
            return sigmoid(slope * score + offset)
        scores = [point[0] for point in self.points]
        after = bisect_right(scores, score)
        if after in (0, len(scores)):
            return self.points[min(after, len(scores) - 1)][1]
        (low, below), (high, above) = self.points[after - 1], self.points[after]
        return below + (above - below) * (score - low) / (high - low)

    def basis_points(self, score: float) -> int:
        return round(self.probability(score) * BASIS_POINTS)


class Bin(msgspec.Struct, frozen=True):
    """One tenth of the scale: how many texts, their mean probability, and the share labelled yes."""

    count: int
    mean_probability: float
    yes_share: float


class Quality(msgspec.Struct, frozen=True):
    # The mean squared difference between probability and label.
    brier: float
    # The average difference between a bin's mean probability and its share of yes, weighted by its texts.
    calibration_error: float
    # None: a bin without texts.
    bins: tuple[Bin | None, ...]

    def report(self) -> dict[str, Any]:
        return {
            "brier": round(self.brier, 4),
            "calibration_error": round(self.calibration_error, 4),
            "reliability": [None if one is None else msgspec.to_builtins(one) for one in self.bins],
        }


class Threshold(msgspec.Struct, frozen=True):
    """A threshold that guarantees an error rate, and how many labels there are and it needs."""

    # None: too few labels.
    basis_points: int | None
    labels: int
    labels_needed: int


class Fitted(msgspec.Struct, frozen=True):
    calibration: Calibration
    labels: int
    # Of the uncalibrated scores, and of probabilities of texts that the calibration wasn't fitted on.
    before: Quality
    after: Quality

    def report(self) -> dict[str, Any]:
        """What is stored with the calibration and shown to operators."""
        return {
            "shape": self.calibration.shape.value,
            "labels": self.labels,
            "before": self.before.report(),
            "after": self.after.report(),
        }


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, score))))


def fit(labelled: Sequence[LabelledScore]) -> Calibration:
    """Raises InvalidRequest for too few labels or only one kind."""
    yes = sum(sample.is_yes for sample in labelled)
    if len(labelled) < LABELS_MIN:
        raise InvalidRequest(
            f"A calibration needs at least {LABELS_MIN} labelled texts, and there are "
            f"{len(labelled)}."
        )
    if yes in (0, len(labelled)):
        raise InvalidRequest("A calibration needs texts with both labels.")
    return _fit_line(labelled) if len(labelled) < _ISOTONIC_FROM else _fit_steps(labelled)


def measure(labelled: Sequence[LabelledScore]) -> Fitted:
    """Raises InvalidRequest as `fit` does."""
    calibration = fit(labelled)
    before = quality([(sigmoid(sample.score), sample.is_yes) for sample in labelled])
    return Fitted(calibration, len(labelled), before, quality(cross_validated(labelled)))


def _fit_line(labelled: Sequence[LabelledScore]) -> Calibration:
    """Platt scaling. The targets are slightly inside 0 and 1, so the slope stays finite even if the scores
    separate the labels perfectly."""
    yes = sum(sample.is_yes for sample in labelled)
    no = len(labelled) - yes
    targets = {True: (yes + 1) / (yes + 2), False: 1 / (no + 2)}
    slope, offset = 1.0, math.log((yes + 1) / (no + 1))
    loss = _loss(labelled, targets, slope, offset)
    for _ in range(_NEWTON_STEPS):
        # By slope and offset. The small numbers prevent a division by zero.
        gradient = [0.0, 0.0]
        curvature = [1e-9, 0.0, 1e-9]
        for sample in labelled:
            probability = sigmoid(slope * sample.score + offset)
            error, weight = probability - targets[sample.is_yes], probability * (1 - probability)
            gradient[0] += error * sample.score
            gradient[1] += error
            curvature[0] += weight * sample.score * sample.score
            curvature[1] += weight * sample.score
            curvature[2] += weight
        determinant = curvature[0] * curvature[2] - curvature[1] ** 2
        step = (
            (curvature[2] * gradient[0] - curvature[1] * gradient[1]) / determinant,
            (curvature[0] * gradient[1] - curvature[1] * gradient[0]) / determinant,
        )
        # A Newton step may be too long, so it's halved until the loss decreases.
        length = 1.0
        while length > 1e-8:
            tried = slope - length * step[0], offset - length * step[1]
            tried_loss = _loss(labelled, targets, *tried)
            if tried_loss < loss:
                break
            length /= 2
        else:
            break
        (slope, offset), loss = tried, tried_loss
    if slope <= 0:
        # A higher score must never mean a lower probability, so instead of a falling line all get the same
        # one.
        slope, offset = 0.0, math.log((yes + 1) / (no + 1))
    return Calibration(Shape.LINE, ((slope, offset),))


def _loss(
    labelled: Sequence[LabelledScore], targets: dict[bool, float], slope: float, offset: float
) -> float:
    total = 0.0
    for sample in labelled:
        logit = slope * sample.score + offset
        # log(1 + exp(logit)) - target * logit, without overflow.
        total += (
            max(logit, 0.0) + math.log1p(math.exp(-abs(logit))) - targets[sample.is_yes] * logit
        )
    return total


def _fit_steps(labelled: Sequence[LabelledScore]) -> Calibration:
    """Isotonic regression: merges neighbouring pools until their shares of yes increase. Laplace's rule of
    succession keeps shares strictly between 0 and 1, because the outermost pools may have only a few texts,
    all with one label."""
    # Mean score, texts, and texts labelled yes. Texts of one score share a pool from the beginning.
    pools: list[list[float]] = []
    by_score = attrgetter("score")
    for equal_score, samples in groupby(sorted(labelled, key=by_score), by_score):
        labels = [sample.is_yes for sample in samples]
        pools.append([equal_score, float(len(labels)), float(sum(labels))])
        while len(pools) > 1 and pools[-2][2] / pools[-2][1] >= pools[-1][2] / pools[-1][1]:
            score, count, yes = pools.pop()
            last = pools[-1]
            mean = (last[0] * last[1] + score * count) / (last[1] + count)
            # Rounding may move the mean of almost equal scores out of their range.
            last[0] = max(last[0], min(mean, score))
            last[1] += count
            last[2] += yes
    points: list[tuple[float, float]] = []
    for score, count, yes in pools:
        # The rule may make a share lower than the one before.
        share = (yes + 1) / (count + 2)
        points.append((score, max(share, points[-1][1]) if points else share))
    return Calibration(Shape.STEPS, tuple(points))


def cross_validated(labelled: Sequence[LabelledScore]) -> list[tuple[float, bool]]:
    """Each probability comes from a calibration fitted without the text's fold. A fold is left out if the
    other folds have only one label. Texts are dealt to the folds by label and score, so the folds are similar
    in any order of texts."""
    judged: list[tuple[float, bool]] = []
    folds: list[list[LabelledScore]] = [[] for _ in range(_FOLDS)]
    for label in (True, False):
        with_label = sorted(
            (sample for sample in labelled if sample.is_yes is label),
            key=lambda sample: sample.score,
        )
        for number, sample in enumerate(with_label):
            folds[number % _FOLDS].append(sample)
    for number, fold in enumerate(folds):
        others = [sample for other in range(_FOLDS) if other != number for sample in folds[other]]
        fit_shape = _fit_line if len(labelled) < _ISOTONIC_FROM else _fit_steps
        if fold and len({sample.is_yes for sample in others}) > 1:
            calibration = fit_shape(others)
            judged += [(calibration.probability(sample.score), sample.is_yes) for sample in fold]
    return judged


def quality(judged: Sequence[tuple[float, bool]]) -> Quality:
    """Of pairs of probability and label."""
    binned: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for probability, is_yes in judged:
        binned[min(int(probability * _BINS), _BINS - 1)].append((probability, is_yes))
    bins = tuple(
        Bin(
            len(inside),
            math.fsum(probability for probability, _ in inside) / len(inside),
            sum(is_yes for _, is_yes in inside) / len(inside),
        )
        if inside
        else None
        for inside in binned
    )
    differences = (one.count * abs(one.mean_probability - one.yes_share) for one in bins if one)
    return Quality(
        brier=math.fsum((probability - is_yes) ** 2 for probability, is_yes in judged)
        / len(judged),
        calibration_error=math.fsum(differences) / len(judged),
        bins=bins,
    )


def threshold_for_false_denials(
    passing: Sequence[int], rate: float, confidence: float
) -> Threshold:
    """The lowest threshold that denies at most this share of acceptable texts. `passing` has the values of
    texts labelled no, in basis points.

    The threshold is one basis point above one of the values. The guarantee holds for every distribution of
    values: it fails with at most a cumulative binomial probability (`_values_beyond`).
    """
    values = sorted(passing)
    beyond = _values_beyond(len(values), rate, confidence)
    threshold = None if beyond is None else values[-1 - beyond] + 1
    return Threshold(threshold, len(values), labels_needed(rate, confidence))


def threshold_for_misses(matching: Sequence[int], rate: float, confidence: float) -> Threshold:
    """The highest threshold that misses at most this share of the texts that should match. `matching` has the
    values of texts labelled yes, in basis points."""
    values = sorted(matching)
    beyond = _values_beyond(len(values), rate, confidence)
    threshold = None if beyond is None else values[beyond]
    return Threshold(threshold, len(values), labels_needed(rate, confidence))


def labels_needed(rate: float, confidence: float) -> int:
    """The fewest texts of one label for a guarantee."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - rate))


def _values_beyond(count: int, rate: float, confidence: float) -> int | None:
    """How many of `count` values may lie on the wrong side of the threshold; None if the guarantee needs more
    values."""
    if count < labels_needed(rate, confidence):
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _binomial_cdf(middle, count, rate) <= 1 - confidence:
            low = middle
        else:
            high = middle - 1
    return low


def guaranteed_rate(errors: int, count: int, confidence: float) -> float:
    """The upper limit of the error rate (Clopper-Pearson interval)."""
    if errors >= count:
        return 1.0
    low, high = errors / count, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _binomial_cdf(errors, count, middle) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


def guarantees(
    matching: Sequence[int], passing: Sequence[int], confidence: float
) -> list[tuple[float, float]]:
    """For each threshold from 1 % to 99 %: the upper limits of the shares of false denials and of misses."""
    yes, no = sorted(matching), sorted(passing)
    rates = []
    for threshold in range(_PERCENT, BASIS_POINTS, _PERCENT):
        denied, missed = len(no) - bisect_left(no, threshold), bisect_left(yes, threshold)
        rates.append(
            (
                round(guaranteed_rate(denied, len(no), confidence), 4),
                round(guaranteed_rate(missed, len(yes), confidence), 4),
            )
        )
    return rates


def stability_index(before: Sequence[int], now: Sequence[int]) -> float:
    """The population stability index of two distributions, as counts by bin: 0 if equal, from 0.25 on
    different. Half a text is added to each bin, because an empty one would make the index infinite."""
    shares = [
        [(count + 0.5) / (sum(counts) + 0.5 * len(counts)) for count in counts]
        for counts in (before, now)
    ]
    return math.fsum(
        (later - earlier) * math.log(later / earlier)
        for earlier, later in zip(*shares, strict=True)
    )


def _binomial_cdf(successes: int, count: int, rate: float) -> float:
    """Sums the terms from `successes` down until the rest is negligible."""
    if rate in (0.0, 1.0):
        return 1.0 if rate == 0.0 or successes >= count else 0.0
    term = math.exp(
        math.lgamma(count + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(count - successes + 1)
        + successes * math.log(rate)
        + (count - successes) * math.log1p(-rate)
    )
    terms = [term]
    for number in range(successes, 0, -1):
        term *= number * (1 - rate) / ((count - number + 1) * rate)
        terms.append(term)
        if number < count * rate and term < terms[0] * 1e-18:
            break
    return math.fsum(terms)


def is_monotone(calibration: Calibration) -> bool:
    """Whether a stored calibration has points and never maps a higher score to a lower probability."""
    if calibration.shape is Shape.LINE:
        return len(calibration.points) == 1 and calibration.points[0][0] >= 0
    return bool(calibration.points) and all(
        low[0] < high[0] and low[1] <= high[1]
        for low, high in zip(calibration.points, calibration.points[1:], strict=False)
    )
