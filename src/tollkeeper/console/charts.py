"""Prepares the data of charts, which static/charts.js draws."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tollkeeper.reports.traffic.rule import STEP_S, STEPS_PER_HOUR, StepCount, TimeRange

# The maximum number of bars in a chart over time.
_BARS_MAX = 72
# A bar that would cover more than this many steps (of five minutes) covers whole hours instead.
_STEPS_PER_BAR_MAX = 6
# The classes of HTTP status, each with the name of its colour in console.css.
_CLASSES = (("2xx", "good"), ("4xx", "warning"), ("5xx", "bad"))


def traffic_chart(steps: Sequence[StepCount], time: TimeRange) -> dict[str, Any]:
    """Builds a bar chart of calls over time, stacked by class of HTTP status."""
    first, last = time.start // STEP_S, (time.end - 1) // STEP_S
    steps_per_bar = -(-(last - first + 1) // _BARS_MAX)
    if steps_per_bar > _STEPS_PER_BAR_MAX:
        # For more than two days, `steps` has hourly counts, so a bar must cover whole hours.
        steps_per_bar = -(-steps_per_bar // STEPS_PER_HOUR) * STEPS_PER_HOUR
    first -= first % steps_per_bar
    starts = range(first, last + 1, steps_per_bar)
    counts = {name: [0] * len(starts) for name, _ in _CLASSES}
    for count in steps:
        name = f"{min(max(count.status // 100, 2), 5)}xx"
        position = (count.step - first) // steps_per_bar
        if 0 <= position < len(starts):
            counts["4xx" if name == "3xx" else name][position] += count.requests
    return {
        "kind": "bars",
        "x": [iso_minute(start * STEP_S) for start in starts],
        "step_s": steps_per_bar * STEP_S,
        "unit": "calls",
        "zoom": True,
        "series": [{"name": name, "tone": tone, "values": counts[name]} for name, tone in _CLASSES],
    }


def stacked_days(days: Sequence[str], series: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Builds a stacked bar chart of daily amounts, with one colour per name. Amounts are decimal
    strings."""
    return {
        "kind": "bars",
        "x": list(days),
        "step_s": 86_400,
        "unit": "USD",
        "series": [
            {"name": name, "values": [float(value) for value in values]}
            for name, values in series.items()
        ],
    }


def hourly(hours: Sequence[int], amounts: Sequence[str]) -> dict[str, Any]:
    """Builds a bar chart of hourly amounts. Hours are counted from 1970-01-01 UTC. Amounts are
    decimal strings."""
    return {
        "kind": "bars",
        "x": [iso_minute(hour * 3600) for hour in hours],
        "step_s": 3600,
        "unit": "USD",
        "series": [{"name": "cost", "values": [float(amount) for amount in amounts]}],
    }


def burn_down(times: Sequence[str], left: Sequence[str], pace: Sequence[str]) -> dict[str, Any]:
    """Builds a line chart of a cap's remaining amount: one line for the actual amount and, unless
    `pace` is empty, one for the amount at an even pace of spending. Amounts are decimal strings."""
    series: list[dict[str, Any]] = [{"name": "left", "values": [float(value) for value in left]}]
    if pace:
        even = [float(value) for value in pace]
        series.append({"name": "even pace", "values": even, "dash": True})
    return {"kind": "lines", "x": list(times), "unit": "USD", "series": series}


def counted_days(days: Sequence[str], series: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Builds a bar chart of daily counts. The bars of one day overlap instead of being
    stacked."""
    return {
        "kind": "bars",
        "x": list(days),
        "step_s": 86_400,
        "unit": "calls",
        "overlap": True,
        "series": [{"name": name, "values": list(values)} for name, values in series.items()],
    }


def threshold_chart(
    points: Sequence[tuple[int, int]],
    threshold: int,
    *,
    value: str = "score",
    guarantees: Sequence[Sequence[float]] | None = None,
) -> dict[str, Any]:
    """Builds a histogram of a policy's values with a movable threshold. `points` contains values
    (in basis points, like `threshold`) with their counts. `value` is the axis title. `guarantees`
    contains the upper limits of the shares of false denials and misses for each threshold from 1 %
    to 99 % (see `calibration.guarantees`)."""
    return {
        "kind": "threshold",
        "points": [list(point) for point in points],
        "at": threshold,
        "value": value,
        "guarantees": None if guarantees is None else [list(pair) for pair in guarantees],
    }


def iso_minute(unix_s: int) -> str:
    """Formats a time in UTC for the axis of a chart."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")
