"""Renders figures of measured datasets with confidence intervals, published figures, and plots."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from statistics import median

from bench.judge.datasets import DATASETS, Case, kinds
from tollkeeper.policies.calibration.rule import (
    LABELS_MIN,
    LabelledScore,
    Quality,
    cross_validated,
    quality,
    sigmoid,
)

# The number of random samples for an interval or a median.
_DRAWS = 1000
_INTERVAL = (0.025, 0.975)
# By dataset, the F1 scores of other judges that were published with it.
_PUBLISHED = {"refusal": [("GPT-4o", ".97 to 1.0"), ("GPT-5.1", ".979")]}

Pairs = Sequence[tuple[float, bool]]


@dataclass(frozen=True)
class Measured:
    """A dataset's texts with the scores of one judge. A score is None if the judge gave none."""

    judge: str
    dataset: str
    scored: list[tuple[Case, float | None]]

    @cached_property
    def labelled(self) -> list[LabelledScore]:
        return [
            LabelledScore(score, case.label) for case, score in self.scored if score is not None
        ]

    @cached_property
    def before(self) -> Pairs:
        return [(sigmoid(one.score), one.is_yes) for one in self.labelled]

    @cached_property
    def after(self) -> Pairs:
        """Returns each text's probability from a calibration that was fitted without this text."""
        return cross_validated(self.labelled)

    @property
    def is_enough(self) -> bool:
        labels = [one.is_yes for one in self.labelled]
        return len(labels) >= LABELS_MIN and 1 < sum(labels) < len(labels) - 1


def auc(pairs: Pairs) -> float:
    no = sorted(value for value, is_yes in pairs if not is_yes)
    yes = [value for value, is_yes in pairs if is_yes]
    if not yes or not no:
        return float("nan")
    below = sum(bisect_left(no, value) + bisect_right(no, value) for value in yes)
    return below / 2 / (len(yes) * len(no))


def f1(pairs: Pairs) -> float:
    """Returns the F1 score at a threshold of 50 %."""
    right = sum(value >= 0.5 and is_yes for value, is_yes in pairs)
    wrong = sum((value >= 0.5) != is_yes for value, is_yes in pairs)
    return 2 * right / (2 * right + wrong) if right or wrong else 0.0


def calibration_error(pairs: Pairs) -> float:
    return quality(pairs).calibration_error


def error_by_chance(pairs: Pairs, seed: int) -> float:
    """Returns the median calibration error that exactly right probabilities would have. It is not zero,
    because a bin has few texts."""
    draw = random.Random(seed)
    return median(
        calibration_error([(value, draw.random() < value) for value, _ in pairs])
        for _ in range(_DRAWS)
    )


def brier(pairs: Pairs) -> float:
    return quality(pairs).brier


def with_interval(figure: Callable[[Pairs], float], pairs: Pairs, seed: int) -> str:
    """Formats a figure with its 95 % interval, which is computed by bootstrap sampling."""
    draw = random.Random(seed)
    found = sorted(figure(draw.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
    known = [value for value in found if value == value]
    low, high = (known[int(share * (len(known) - 1))] for share in _INTERVAL)
    return f"{_short(figure(pairs))} ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1)


_HEADINGS = (
    *("dataset", "judge", "texts (yes)", "AUC", "F1 at 50 %", "F1, calibrated", "Brier"),
    *("Brier, calibrated", "ECE", "ECE, calibrated", "ECE by chance"),
)


def table(measured: Sequence[Measured], *, seed: int) -> str:
    """Returns Markdown tables of the datasets with enough labels, and of the manipulations."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for one in measured:
        if not one.is_enough:
            continue
        figures = (
            (auc, one.before),
            *((f1, pairs) for pairs in (one.before, one.after)),
            *((brier, pairs) for pairs in (one.before, one.after)),
            *((calibration_error, pairs) for pairs in (one.before, one.after)),
        )
        yes = sum(found.is_yes for found in one.labelled)
        rows.append(
            (
                DATASETS[one.dataset].title,
                one.judge,
                f"{len(one.labelled)} ({yes})",
                *(with_interval(figure, pairs, seed) for figure, pairs in figures),
                _short(error_by_chance(one.after, seed)),
            )
        )
    for dataset in dict.fromkeys(one.dataset for one in measured if one.is_enough):
        for judge, published in _PUBLISHED.get(dataset, ()):
            unknown = ("", "", published, *[""] * 6)
            rows.append((DATASETS[dataset].title, f"{judge} (published)", *unknown))
    parts = [_markdown(rows)]
    by_dataset = {one.dataset: one for one in measured}
    if {"plain", "manipulated"} <= set(by_dataset):
        parts.append(manipulations(by_dataset["plain"], by_dataset["manipulated"]))
    return "\n\n".join(parts)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def manipulations(plain: Measured, manipulated: Measured) -> str:
    """Counts for each kind of manipulation the scores that it moved towards the wrong answer, and the right
    verdicts without and with it, at the threshold that separates the plain texts best."""
    scores = {(case.rule, case.text): score for case, score in plain.scored}
    threshold = _best_threshold(plain.before)
    rows: list[tuple[str, ...]] = [
        ("manipulation", "texts", "moved to the wrong side", "right without", "right with")
    ]
    cases = [case for case, _ in manipulated.scored]
    for kind in (*kinds(cases), ""):
        moved = count = right_before = right_after = 0
        for case, score in manipulated.scored:
            before = scores.get((case.rule, case.plain))
            if score is None or before is None or kind not in ("", case.kind):
                continue
            count += 1
            moved += (score < before) if case.label else (score > before)
            right_before += (sigmoid(before) >= threshold) == case.label
            right_after += (sigmoid(score) >= threshold) == case.label
        if count:
            rows.append((kind or "all", *map(str, (count, moved, right_before, right_after))))
    return _markdown(rows)


def _best_threshold(pairs: Pairs) -> float:
    if not pairs:
        return 0.5
    values = sorted(value for value, _ in pairs)
    return max(values, key=lambda at: sum((value >= at) == is_yes for value, is_yes in pairs))


_SIDE, _LEFT, _TOP, _GAP = 200, 44, 56, 60
_COLOURS = {"score": "#c2703d", "calibrated": "#3b6ea5"}


def draw(measured: Sequence[Measured]) -> str:
    """Draws a plot for each dataset: the share of yes by score and by calibrated probability. A point is
    larger if it stands for more texts."""
    shown = [one for one in measured if one.is_enough]
    width = _LEFT + len(shown) * (_SIDE + _GAP)
    height = _TOP + _SIDE + 64
    drawn = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
            '<rect width="100%" height="100%" fill="white"/>'
        )
    ]
    for number, one in enumerate(shown):
        drawn += _plot(one, _LEFT + number * (_SIDE + _GAP))
    for number, (name, colour) in enumerate(_COLOURS.items()):
        x, y = _LEFT + 110 * number, height - 14
        drawn.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour}" opacity="0.7"/>')
        drawn.append(f'<text x="{x + 10}" y="{y}">{name}</text>')
    return "\n".join([*drawn, "</svg>\n"])


def _plot(one: Measured, left: float) -> list[str]:
    bottom = _TOP + _SIDE
    drawn = [
        f'<text x="{left}" y="20" font-size="13">{escape(DATASETS[one.dataset].title)}</text>',
        f'<text x="{left}" y="38" fill="#666">{escape(one.judge)}, {len(one.labelled)} texts</text>',
        f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>',
        (
            f'<line x1="{left}" y1="{bottom}" x2="{left + _SIDE}" y2="{_TOP}" stroke="#999" '
            'stroke-dasharray="5 4"/>'
        ),
        f'<text x="{left + _SIDE / 2}" y="{bottom + 18}" text-anchor="middle">value</text>',
        (
            f'<text transform="translate({left - 12} {_TOP + _SIDE / 2}) rotate(-90)" '
            'text-anchor="middle">share of yes</text>'
        ),
        f'<text x="{left + _SIDE}" y="{bottom + 18}" text-anchor="end">1</text>',
        f'<text x="{left - 8}" y="{_TOP + 10}" text-anchor="end">1</text>',
        f'<text x="{left - 8}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for pairs, colour in zip((one.before, one.after), _COLOURS.values(), strict=True):
        drawn += _points(quality(pairs), colour, left, len(pairs))
    return drawn


def _points(found: Quality, colour: str, left: float, texts: int) -> list[str]:
    return [
        f'<circle cx="{left + _SIDE * one.mean_probability:.1f}" '
        f'cy="{_TOP + _SIDE * (1 - one.yes_share):.1f}" r="{3 + 12 * (one.count / texts) ** 0.5:.1f}" '
        f'fill="{colour}" opacity="0.7"><title>{one.count} texts: value '
        f"{one.mean_probability:.2f}, share of yes {one.yes_share:.2f}</title></circle>"
        for one in found.bins
        if one is not None
    ]
