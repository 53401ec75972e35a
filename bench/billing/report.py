"""Renders the table, the chart and the JSON of a run."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from html import escape
from typing import Any

from bench.billing.result import Result, TrialResult

_OURS = "tollkeeper"
_NONE = "not offered"


@dataclass(frozen=True)
class Run:
    """The results of one gateway. `missing` is the reason if it could not run."""

    gateway: str
    version: str
    results: list[Result]
    trials: list[TrialResult]
    trials_not_run: dict[str, str]
    missing: str | None = None
    # How the gateway was set up, if that depends on the machine.
    setup: str = ""

    @property
    def compared(self) -> list[Result]:
        return [result for result in self.results if result.error is not None]

    @property
    def exact(self) -> int:
        return sum(bool(result.exact) for result in self.compared)

    @property
    def share(self) -> Decimal:
        return Decimal(self.exact) / max(1, len(self.compared))


def joined(parts: list[Run]) -> Run:
    """Add the other runs of a gateway to its first run, and return it. The first run's `missing` counts."""
    [first, *others] = parts
    for other in others:
        first.results.extend(other.results)
        first.trials.extend(other.trials)
        first.trials_not_run.update(other.trials_not_run)
    return first


_HEADER = (
    *("gateway", "scenarios", "exact", "mean error", "worst error", "true total", "booked total"),
    *("usage unknown: says so", "budget overspent", "lost after a kill"),
)


def as_markdown(runs: list[Run]) -> str:
    lines = ["| " + " | ".join(_HEADER) + " |", "|" + "---|" * len(_HEADER)]
    lines += ["| " + " | ".join(_row(run)) + " |" for run in runs]
    return "\n".join(lines)


def _row(run: Run) -> list[str]:
    name = f"{run.gateway} {run.version}".strip()
    if run.missing is not None:
        return [name, run.missing, *[""] * (len(_HEADER) - 2)]
    compared = run.compared
    if not compared:
        return [name, "0", _NONE, *[_NONE] * (len(_HEADER) - 3)]
    errors = [abs(_relative(result)) for result in compared]
    worst = max(compared, key=lambda result: abs(_relative(result)))
    unknown = [
        result for result in run.results if result.true is None and result.not_offered is None
    ]
    says_so = sum(not result.certain for result in unknown)
    booked = sum((result.booked or Decimal(0) for result in compared), Decimal(0))
    return [
        name,
        str(len(compared)),
        f"{run.exact} ({run.share * 100:.1f} %)",
        f"{sum(errors) / len(errors) * 100:.1f} %",
        f"{_relative(worst) * 100:+.0f} % ({worst.scenario})" if not _all_exact(run) else "0 %",
        f"{sum((result.true or Decimal(0) for result in compared), Decimal(0)):.6f}",
        f"{booked:.6f}",
        f"{says_so} of {len(unknown)}",
        _trials(run, "race"),
        _trials(run, "kill"),
    ]


def trials_as_markdown(runs: list[Run]) -> str:
    """Render each trial's number of answered calls, the provider's bill and the booked cost in USD."""
    names = [trial.trial for trial in runs[0].trials]
    lines = ["| trial | " + " | ".join(run.gateway for run in runs) + " |"]
    lines.append("|---|" + "---|" * len(runs))
    for name in names:
        cells = [_trial_cell(run, name) for run in runs]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _trial_cell(run: Run, name: str) -> str:
    for trial in run.trials:
        if trial.trial == name:
            answered = f"{trial.answered} of {trial.calls} calls answered"
            budget = "" if trial.budget is None else f"budget {trial.budget:.3f}, "
            return f"{answered}; {budget}billed {trial.true:.3f}, booked {trial.booked:.3f}"
    return run.trials_not_run.get(name, run.missing or _NONE)


def _all_exact(run: Run) -> bool:
    return run.exact == len(run.compared)


def _relative(result: Result) -> Decimal:
    """Return the error as a share of the true cost. A cost booked for a free call is an error of 100 %."""
    assert result.error is not None
    if not result.true:
        return Decimal(bool(result.error))
    return result.error / result.true


def _trials(run: Run, kind: str) -> str:
    found = [trial for trial in run.trials if trial.trial.startswith(kind)]
    if not found:
        reasons = {why for name, why in run.trials_not_run.items() if name.startswith(kind)}
        return "; ".join(sorted(reasons)) or "not run"
    if kind == "race":
        worst = max(found, key=lambda trial: trial.overspent or 0)
        assert worst.budget
        return f"{(worst.overspent or 0) / worst.budget * 100:.0f} %"
    lost, true = sum(trial.lost for trial in found), sum(trial.true for trial in found)
    return f"{lost / true * 100:.0f} %"


_LEFT, _WIDTH, _BAR = 130, 720, 28


def draw(runs: list[Run]) -> str:
    """Draw the share of exact bookings as bars, in the style of the other charts."""
    shown = [run for run in runs if run.missing is None]
    height = 84 + _BAR * len(shown)
    wide = _WIDTH - _LEFT - 30
    bottom = 40 + _BAR * len(shown)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
    )
    title = "Bookings that equal the provider's bill, %"
    drawn = [head, f'<text x="{_LEFT}" y="28" font-size="14">{title}</text>']
    for percent in range(0, 101, 25):
        x = _LEFT + wide * percent / 100
        drawn.append(
            f'<line x1="{x:.1f}" y1="40" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{percent}</text>'
        )
    drawn += [_bar(run, number, wide) for number, run in enumerate(shown)]
    caption = "Only scenarios that a gateway offers, and whose cost the provider reports"
    drawn.append(f'<text x="{_LEFT}" y="{height - 10}" font-size="10" fill="#666">{caption}</text>')
    return "\n".join([*drawn, "</svg>\n"])


def _bar(run: Run, number: int, wide: int) -> str:
    y = 44 + _BAR * number
    name = f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(run.gateway)}</text>'
    if not run.compared:
        return f'{name}<text x="{_LEFT + 6}" y="{y + 15}" fill="#666">computes no costs</text>'
    colour = "#c2703d" if run.gateway == _OURS else "#3b6ea5"
    width = float(run.share) * wide
    said = f"{run.share * 100:.1f} ({run.exact} of {len(run.compared)})"
    return (
        f'{name}<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="20" fill="{colour}"/>'
        f'<text x="{_LEFT + width - 6:.1f}" y="{y + 15}" text-anchor="end" fill="white">{said}</text>'
    )


def as_json(runs: list[Run], machine: str, at: str) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return f"{value:f}" if isinstance(value, Decimal) else value

    return {"at": at, "machine": machine, "gateways": [plain(asdict(run)) for run in runs]}
