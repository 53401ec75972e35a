"""Converts the judge's raw scores to probabilities, measures the quality of these probabilities,
and finds thresholds with guaranteed error rates.

The judge is the model that answers a policy's yes-or-no question about a text; this module does not
call it. A raw score is the log-odds of "yes". A calibration is a monotone map from scores to
probabilities, fitted on labelled texts: a line in log-odds for few labels, and isotonic regression
for many.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.percent import BASIS_POINTS

# The minimum number of labelled texts for a calibration.
LABELS_MIN = 10
# The default confidence level of a guarantee.
CONFIDENCE = 0.95
# From this many labels on, isotonic regression fits better than a line.
_ISOTONIC_FROM = 200
# Scores are limited to this absolute value. The probability of a larger score differs from 0 or 1
# by less than 1e-9.
SCORE_MAX = 23.0
# The number of parts into which cross-validation divides the texts.
_FOLDS = 5
# The number of bins in `Quality`.
_BINS = 10
# The maximum number of iterations of Newton's method.
_NEWTON_STEPS = 50
# The number of times that `guaranteed_rate` halves its search interval.
_HALVINGS = 24
# One percent in basis points.
_PERCENT = BASIS_POINTS // 100


class LabelledScore(msgspec.Struct, frozen=True):
    """Contains a text's raw score and its label, which is the right answer to the policy's
    question."""

    score: float
    is_yes: bool


class Shape(StrEnum):
    LINE = "line"
    STEPS = "steps"


class Calibration(msgspec.Struct, frozen=True):
    """Maps raw scores to probabilities monotonically.

    For a line, `points[0]` contains the slope and the offset. For steps, each point is a corner
    with a score and its probability, and the map is linear between two corners.
    """

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
    """Describes the texts whose probabilities lie in one tenth of the scale: their number, their
    mean probability, and the share of them labelled yes."""

    count: int
    mean_probability: float
    yes_share: float


class Quality(msgspec.Struct, frozen=True):
    """Measures how well probabilities agree with labels."""

    # The Brier score: the mean squared difference between probability and label (0 or 1).
    brier: float
    # The expected calibration error: the average difference between a bin's mean probability and
    # its share of texts labelled yes, weighted by the number of texts in the bin.
    calibration_error: float
    # None stands for a bin without texts.
    bins: tuple[Bin | None, ...]

    def report(self) -> dict[str, Any]:
        return {
            "brier": round(self.brier, 4),
            "calibration_error": round(self.calibration_error, 4),
            "reliability": [None if one is None else msgspec.to_builtins(one) for one in self.bins],
        }


class Threshold(msgspec.Struct, frozen=True):
    """Contains a threshold that guarantees an error rate, and the available and the needed number
    of labels."""

    # None if there are fewer labels than needed.
    basis_points: int | None
    labels: int
    labels_needed: int


class Fitted(msgspec.Struct, frozen=True):
    """Contains a calibration and the quality of probabilities before and after it."""

    calibration: Calibration
    labels: int
    # The quality of the uncalibrated scores, and of calibrated probabilities for texts that were
    # not used to fit the calibration.
    before: Quality
    after: Quality

    def report(self) -> dict[str, Any]:
        """Returns the measurements to store with the calibration and to show to operators."""
        return {
            "shape": self.calibration.shape.value,
            "labels": self.labels,
            "before": self.before.report(),
            "after": self.after.report(),
        }


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, score))))


def fit(labelled: Sequence[LabelledScore]) -> Calibration:
    """Fits a calibration. Raises InvalidRequest if there are too few labels or all labels are the
    same."""
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
    """Fits a calibration and measures its quality. Raises InvalidRequest as `fit` does."""
    calibration = fit(labelled)
    before = quality([(sigmoid(sample.score), sample.is_yes) for sample in labelled])
    return Fitted(calibration, len(labelled), before, quality(cross_validated(labelled)))


def _fit_line(labelled: Sequence[LabelledScore]) -> Calibration:
    """Fits the line in log-odds with the highest likelihood (Platt scaling). The target
    probabilities of the labels are slightly above 0 and slightly below 1. So the slope stays finite
    even if the scores separate the two labels perfectly."""
    yes = sum(sample.is_yes for sample in labelled)
    no = len(labelled) - yes
    targets = {True: (yes + 1) / (yes + 2), False: 1 / (no + 2)}
    slope, offset = 1.0, math.log((yes + 1) / (no + 1))
    loss = _loss(labelled, targets, slope, offset)
    for _ in range(_NEWTON_STEPS):
        # The first and the second derivatives of the loss by slope and offset. The small numbers
        # prevent a division by zero.
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
        # A Newton step may be too long, so it is halved until the loss decreases.
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
        # The best line would fall, but a higher score must never mean a lower probability. So all
        # scores get the same probability.
        slope, offset = 0.0, math.log((yes + 1) / (no + 1))
    return Calibration(Shape.LINE, ((slope, offset),))


def _loss(
    labelled: Sequence[LabelledScore], targets: dict[bool, float], slope: float, offset: float
) -> float:
    total = 0.0
    for sample in labelled:
        logit = slope * sample.score + offset
        # Computes log(1 + exp(logit)) - target * logit without overflow.
        total += (
            max(logit, 0.0) + math.log1p(math.exp(-abs(logit))) - targets[sample.is_yes] * logit
        )
    return total


def _fit_steps(labelled: Sequence[LabelledScore]) -> Calibration:
    """Fits an isotonic regression: merges neighbouring pools of texts until their shares of yes
    increase with the score. Laplace's rule of succession keeps each pool's share strictly between 0
    and 1, because the lowest and the highest pool may have only a few texts, all with one label."""
    # Each pool has its mean score, its number of texts, and its number of texts labelled yes. Texts
    # with the same score are in one pool from the beginning.
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
        # The rule of succession may make a share lower than the share before it; `max` corrects it.
        share = (yes + 1) / (count + 2)
        points.append((score, max(share, points[-1][1]) if points else share))
    return Calibration(Shape.STEPS, tuple(points))


def cross_validated(labelled: Sequence[LabelledScore]) -> list[tuple[float, bool]]:
    """Returns the probability and the label of each text. Each probability comes from a calibration
    that was fitted without the text's fold (cross-validation). A fold is omitted if all texts of
    the other folds have the same label. Texts of each label are distributed over the folds in the
    order of their scores, so the folds are similar for any order of the texts."""
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
    """Measures the quality of probabilities. `judged` contains pairs of probability and label."""
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
    """Finds the lowest threshold for which the share of acceptable texts that are denied is at most
    `rate`, with this confidence. `passing` contains the values of texts labelled no, in basis
    points.

    The threshold is one basis point above one of the values. The guarantee holds for every
    distribution of values: the probability that it fails is at most a cumulative binomial
    probability (see `_values_beyond`).
    """
    values = sorted(passing)
    beyond = _values_beyond(len(values), rate, confidence)
    threshold = None if beyond is None else values[-1 - beyond] + 1
    return Threshold(threshold, len(values), labels_needed(rate, confidence))


def threshold_for_misses(matching: Sequence[int], rate: float, confidence: float) -> Threshold:
    """Finds the highest threshold for which the share of texts that should match but do not is at
    most `rate`, with this confidence. `matching` contains the values of texts labelled yes, in
    basis points."""
    values = sorted(matching)
    beyond = _values_beyond(len(values), rate, confidence)
    threshold = None if beyond is None else values[beyond]
    return Threshold(threshold, len(values), labels_needed(rate, confidence))


def labels_needed(rate: float, confidence: float) -> int:
    """Returns the minimum number of texts with one label (yes or no) for a guarantee."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - rate))


def _values_beyond(count: int, rate: float, confidence: float) -> int | None:
    """Returns the highest number of values, out of `count`, that may lie on the wrong side of the
    threshold; None if the guarantee needs more values."""
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
    """Returns the upper limit of the error rate, with this confidence, if `errors` of `count`
    labelled texts were errors (Clopper-Pearson interval)."""
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
    """Returns the guaranteed error rates for each threshold from 1 % to 99 %: upper limits, with
    this confidence, of the share of false denials and of the share of misses. `matching` and
    `passing` contain the values of texts labelled yes and no, in basis points."""
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
    """Returns the population stability index of two distributions, each given as counts by bin. The
    index is 0 for equal distributions; from 0.25 on, distributions count as different. Half a text
    is added to each bin, because an empty bin would make the index infinite."""
    shares = [
        [(count + 0.5) / (sum(counts) + 0.5 * len(counts)) for count in counts]
        for counts in (before, now)
    ]
    return math.fsum(
        (later - earlier) * math.log(later / earlier)
        for earlier, later in zip(*shares, strict=True)
    )


def _binomial_cdf(successes: int, count: int, rate: float) -> float:
    """Returns the probability of at most `successes` successes in `count` trials. Sums the terms
    for `successes`, `successes - 1` and so on, until the remaining terms are negligible."""
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
    """Tells whether a stored calibration is valid: it must have points, and it must never map a
    higher score to a lower probability."""
    if calibration.shape is Shape.LINE:
        return len(calibration.points) == 1 and calibration.points[0][0] >= 0
    return bool(calibration.points) and all(
        low[0] < high[0] and low[1] <= high[1]
        for low, high in zip(calibration.points, calibration.points[1:], strict=False)
    )
