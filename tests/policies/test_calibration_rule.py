"""Tests that calibrations are monotone and lower the calibration error, and that guarantees hold on
simulated labels."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.percent import basis_points_of, percent_of
from tollkeeper.policies.calibration.rule import (
    LabelledScore,
    Shape,
    cross_validated,
    fit,
    guaranteed_rate,
    guarantees,
    is_monotone,
    labels_needed,
    quality,
    sigmoid,
    stability_index,
    threshold_for_false_denials,
    threshold_for_misses,
)


def _overconfident(count: int, seed: int, *, sharpness: float = 4.0) -> list[LabelledScore]:
    """Returns scores of a judge that multiplies the true log-odds of each text by `sharpness`."""
    draw = random.Random(seed)
    labelled = []
    for _ in range(count):
        odds = draw.gauss(-0.5, 1.5)
        labelled.append(LabelledScore(sharpness * odds, draw.random() < sigmoid(odds)))
    return labelled


@pytest.mark.parametrize(
    ("count", "shape"), [(60, Shape.LINE), (199, Shape.LINE), (400, Shape.STEPS)]
)
def test_a_calibration_lowers_the_error_on_texts_that_it_has_not_seen(
    count: int, shape: Shape
) -> None:
    for seed in range(10):
        labelled = _overconfident(count, seed)
        calibration = fit(labelled)
        assert calibration.shape is shape
        assert is_monotone(calibration)
        fresh = _overconfident(4000, seed + 1000)
        before = quality([(sigmoid(one.score), one.is_yes) for one in fresh])
        after = quality([(calibration.probability(one.score), one.is_yes) for one in fresh])
        assert after.calibration_error < before.calibration_error / (1 if count < 100 else 2)
        assert after.brier < before.brier
        cross = quality(cross_validated(labelled))
        assert sum(one.count for one in cross.bins if one) == count


def test_probabilities_never_fall_with_the_score() -> None:
    for labelled in (_overconfident(80, 1), _overconfident(500, 2)):
        calibration = fit(labelled)
        scores = [number / 10 for number in range(-300, 301)]
        found = [calibration.basis_points(score) for score in scores]
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] <= 10_000


@given(
    st.lists(
        st.one_of(st.sampled_from((0.1, math.nextafter(0.1, 1), 1 / 3)), st.floats(-23, 23)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 10**9),
)
def test_steps_over_few_distinct_scores_are_monotone(scores: list[float], seed: int) -> None:
    """The mean of equal or almost equal scores may differ from them by rounding."""
    generator = random.Random(seed)
    labels = [True, False, *generator.choices((True, False), k=300)]
    labelled = [LabelledScore(generator.choice(scores), label) for label in labels]
    assert is_monotone(fit(labelled))


def test_labels_that_contradict_the_scores_give_a_flat_map() -> None:
    reversed_labels = [LabelledScore(one.score, not one.is_yes) for one in _overconfident(100, 3)]
    calibration = fit(reversed_labels)
    assert calibration.points[0][0] == 0.0


def test_perfectly_separated_labels_give_a_finite_line() -> None:
    labelled = [LabelledScore(score, score > 0) for score in range(-20, 21)]
    calibration = fit(labelled)
    assert math.isfinite(calibration.points[0][0])
    assert 0.9 < calibration.probability(20) < 1
    assert 0 < calibration.probability(-20) < 0.1


def test_too_few_labels_and_a_single_label_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least 10"):
        fit(_overconfident(9, 1))
    with pytest.raises(InvalidRequest, match="both labels"):
        fit([LabelledScore(float(number), True) for number in range(20)])


@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_guarantees_hold_in_as_many_draws_as_they_say(rate: float) -> None:
    """A guarantee of 95 % may be wrong in 5 % of draws. The true rate is known here, because scores
    of texts that should pass are normally distributed around -1, and others around 1."""
    kept_denials = kept_misses = 0
    draws = 200
    count = labels_needed(rate, 0.95) + 40
    for seed in range(draws):
        draw = random.Random(seed)
        passing = [round(1e6 * draw.gauss(-1, 1)) for _ in range(count)]
        matching = [round(1e6 * draw.gauss(1, 1)) for _ in range(count)]
        denials = threshold_for_false_denials(passing, rate, 0.95).basis_points
        misses = threshold_for_misses(matching, rate, 0.95).basis_points
        assert denials is not None
        assert misses is not None
        kept_denials += 0.5 * math.erfc((denials / 1e6 + 1) / math.sqrt(2)) <= rate
        kept_misses += 0.5 * math.erfc(-(misses / 1e6 - 1) / math.sqrt(2)) <= rate
    # Five standard deviations below 95 %, so that a correct guarantee never fails here.
    assert min(kept_denials, kept_misses) >= draws * 0.95 - 5 * math.sqrt(draws * 0.05 * 0.95)


def test_too_few_labels_for_a_guarantee_say_how_many_are_needed() -> None:
    assert labels_needed(0.01, 0.95) == 299
    found = threshold_for_false_denials(range(100), 0.01, 0.95)
    assert (found.basis_points, found.labels, found.labels_needed) == (None, 100, 299)
    assert threshold_for_false_denials(range(299), 0.01, 0.95).basis_points == 299
    assert threshold_for_misses(range(1, 300), 0.01, 0.95).basis_points == 1


def test_the_interval_is_the_exact_one() -> None:
    """Compares with known upper limits of exact binomial (Clopper-Pearson) intervals: a rate just above the
    limit allows this number of errors, and a rate just below it allows one error less."""
    for errors, count, confidence, upper in (
        (0, 100, 0.95, 0.029513),
        (5, 100, 0.975, 0.112835),
    ):
        above = threshold_for_misses(range(count), upper + 1e-6, confidence)
        below = threshold_for_misses(range(count), upper - 1e-6, confidence)
        assert above.basis_points == errors
        assert below.basis_points == (errors - 1 if errors else None)
    assert threshold_for_misses(range(7), 0.01, 0.95).basis_points is None


@pytest.mark.parametrize(
    ("errors", "count", "confidence", "upper"),
    [
        (0, 299, 0.95, 0.009969),
        (0, 100, 0.95, 0.029513),
        (5, 100, 0.95, 0.102253),
        (5, 100, 0.975, 0.112835),
        (3, 10, 0.95, 0.606624),
        (10, 10, 0.95, 1.0),
        (0, 0, 0.95, 1.0),
    ],
)
def test_a_guaranteed_rate_is_the_exact_upper_limit(
    errors: int, count: int, confidence: float, upper: float
) -> None:
    assert guaranteed_rate(errors, count, confidence) == pytest.approx(upper, abs=1e-5)


def test_guarantees_at_each_percent_agree_with_thresholds() -> None:
    draw = random.Random(5)
    passing = [draw.randrange(6000) for _ in range(400)]
    matching = [draw.randrange(4000, 10_001) for _ in range(300)]
    found = guarantees(matching, passing, 0.95)
    assert len(found) == 99
    denied, missed = ([pair[side] for pair in found] for side in (0, 1))
    assert denied == sorted(denied, reverse=True)
    assert missed == sorted(missed)
    for rate in (0.02, 0.05, 0.2):
        threshold = threshold_for_false_denials(passing, rate, 0.95).basis_points
        assert threshold is not None
        # The rate is kept at the next whole percent, but not at the percent before it.
        above = -(-threshold // 100)
        assert denied[above - 1] <= rate + 1e-4
        assert denied[above - 2] > rate or (above - 1) * 100 >= threshold


def test_the_stability_index_tells_distributions_apart() -> None:
    before = [50, 30, 10, 5, 5]
    assert stability_index(before, [count * 7 for count in before]) < 0.01
    assert stability_index(before, [5, 5, 10, 30, 50]) > 1
    assert stability_index(before, [100, 0, 0, 0, 0]) > 0.25


def test_percent_and_basis_points() -> None:
    for basis_points in (1, 10, 99, 100, 5000, 5750, 9999):
        assert basis_points_of(percent_of(basis_points)) == basis_points
    assert [percent_of(one) for one in (0, 4, 5750, 10_000)] == ["0 %", "0.04 %", "57.5 %", "100 %"]
    for wrong in ("", "0", "100", "5750", "1.234", "-1", "a"):
        with pytest.raises(InvalidRequest, match="percentage"):
            basis_points_of(wrong)


def test_scores_that_say_nothing_give_the_share_of_yes() -> None:
    """A higher score must not lower the probability. If the labels contradict this, the best fit is one
    probability for all scores. This is not the fitted line with its slope set to zero."""
    labelled = [
        LabelledScore(-6.0 + number / 10, number % 3 != 0 and number < 60) for number in range(75)
    ]
    share = sum(one.is_yes for one in labelled) / len(labelled)
    found = fit(labelled)
    values = {found.probability(one.score) for one in labelled}
    assert len(values) == 1
    assert values.pop() == pytest.approx(share, abs=0.01)
