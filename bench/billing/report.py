"""Renders the table, the chart and the JSON of a run."""

import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from typing import Any

from bench.billing.result import NOT_OFFERED, Result, TrialResult

_OURS = "tollkeeper"
# A table names the cases that are left out for one reason, if they are at most this many.
_NAMED = 3


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
    # Whether the gateway has any way to mark a cost as unknown.
    marks_unknown: bool = True

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


# The columns of the table, and their alignment in Markdown.
_COLUMNS = {
    "gateway": "---",
    "scenarios": "--:",
    "exact bookings": "--:",
    "mean error": "--:",
    "worst error": "---",
    "true total, USD": "--:",
    "booked total, USD": "--:",
    "unknown cost is marked": "--:",
    "budget overspent": "---",
    "lost after a kill": "---",
}


def as_markdown(runs: list[Run]) -> str:
    lines = [_line(list(_COLUMNS)), "|" + "|".join(_COLUMNS.values()) + "|"]
    return "\n".join([*lines, *(_line(_row(run)) for run in runs)])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(run: Run) -> list[str]:
    name = f"**{run.gateway}**" if run.gateway == _OURS else run.gateway
    name = f"{name} {run.version}".strip()
    if run.missing is not None:
        return [name, run.missing, *[""] * (len(_COLUMNS) - 2)]
    compared = run.compared
    if not compared:
        return [name, "0", *[NOT_OFFERED] * (len(_COLUMNS) - 2)]
    errors = [abs(_relative(result)) for result in compared]
    worst = max(compared, key=lambda result: abs(_relative(result)))
    booked = sum((result.booked or Decimal(0) for result in compared), Decimal(0))
    return [
        name,
        str(len(compared)),
        f"{run.exact} ({run.share * 100:.1f} %)",
        f"{sum(errors) / len(errors) * 100:.1f} %",
        f"{_relative(worst) * 100:+.0f} % (`{worst.scenario}`)" if not _all_exact(run) else "0 %",
        f"{sum((result.true or Decimal(0) for result in compared), Decimal(0)):.6f}",
        f"{booked:.6f}",
        _marked(run),
        _trials(run, "race"),
        _trials(run, "kill"),
    ]


def _marked(run: Run) -> str:
    if not run.marks_unknown:
        return NOT_OFFERED
    unknown = [
        result for result in run.results if result.true is None and result.not_offered is None
    ]
    return f"{sum(not result.certain for result in unknown)} of {len(unknown)}"


def trials_as_markdown(runs: list[Run]) -> str:
    """Render each trial's number of answered calls, the provider's bill and the booked cost in USD."""
    lines = [_line(["trial", *(run.gateway for run in runs)]), "|" + "---|" * (len(runs) + 1)]
    lines += [
        _line([name, *(_trial_cell(run, name) for run in runs)]) for name in _trial_names(runs)
    ]
    return "\n".join(lines)


def _trial_names(runs: list[Run]) -> list[str]:
    names = [trial.trial for run in runs for trial in run.trials]
    return list(dict.fromkeys([*names, *(name for run in runs for name in run.trials_not_run)]))


def _trial_cell(run: Run, name: str) -> str:
    for trial in run.trials:
        if trial.trial == name:
            budget = "" if trial.budget is None else f"budget {trial.budget:.3f}, "
            sums = f"{budget}billed {trial.true:.3f}, booked {trial.booked:.3f}"
            marked = f", marked calls: {trial.marked}" if trial.marked else ""
            down = f"{trial.answered_in_outage} of {trial.in_outage} while the database was down"
            outage = f"; {down}" if trial.in_outage else ""
            return f"{trial.answered} of {trial.calls}; {sums}{marked}{outage}"
    return run.trials_not_run.get(name, run.missing or NOT_OFFERED)


def left_out_as_markdown(left_out: dict[str, str]) -> str:
    """Render the number of cases that are left out for each reason. A reason that applies to few cases
    names them."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in left_out.items():
        by_reason[reason].append(name)
    lines = [_line(["reason", "cases", "names"]), "|---|--:|---|"]
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        named = ", ".join(f"`{name}`" for name in names) if len(names) <= _NAMED else ""
        lines.append(_line([reason, str(len(names)), named]))
    return "\n".join([*lines, _line(["all", str(len(left_out)), ""])])


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


def as_json(
    runs: list[Run], kinds: dict[str, str], left_out: dict[str, str], machine: str, at: str
) -> dict[str, Any]:
    """Return all results as lists of flat objects. `kinds` has the kind of each scenario."""
    return {
        "at": at,
        "machine": machine,
        "gateways": [
            {
                "gateway": run.gateway,
                "version": run.version,
                "setup": run.setup,
                "missing": run.missing,
                "marks_unknown": run.marks_unknown,
            }
            for run in runs
        ],
        "results": [
            _result_as_json(run, result, kinds[result.scenario])
            for run in runs
            for result in run.results
        ],
        "trials": [line for run in runs for line in _trials_as_json(run)],
        "left_out": [{"case": name, "reason": why} for name, why in left_out.items()],
    }


def _result_as_json(run: Run, result: Result, kind: str) -> dict[str, Any]:
    reason = {} if result.not_offered is None else {"reason": result.not_offered}
    return {
        "gateway": run.gateway,
        "scenario": result.scenario,
        "kind": kind,
        "true": _usd(result.true),
        "booked": _usd(result.booked),
        "marked": not result.certain,
        "verdict": result.verdict(run.marks_unknown),
        **reason,
    }


def _trials_as_json(run: Run) -> list[dict[str, Any]]:
    played = [
        {
            "gateway": run.gateway,
            "trial": trial.trial,
            "calls": trial.calls,
            "answered": trial.answered,
            "budget": _usd(trial.budget),
            "billed": _usd(trial.true),
            "booked": _usd(trial.booked),
            "marked": trial.marked,
            "lost": _usd(trial.lost),
            "in_outage": trial.in_outage,
            "answered_in_outage": trial.answered_in_outage,
        }
        for trial in run.trials
    ]
    not_run = run.trials_not_run.items()
    return [*played, *({"gateway": run.gateway, "trial": t, "not_run": why} for t, why in not_run)]


def _usd(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def json_text(found: dict[str, Any]) -> str:
    """Write the result of `as_json` with one line for each item of its lists."""

    def written(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value)
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"

    parts = [f"{json.dumps(name)}: {written(value)}" for name, value in found.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def runs_from_json(found: dict[str, Any]) -> list[Run]:
    """Return the runs from which `as_json` made this, without the clients' answers."""
    runs = {
        line["gateway"]: Run(
            *(line["gateway"], line["version"], [], [], {}),
            missing=line["missing"],
            setup=line["setup"],
            marks_unknown=line["marks_unknown"],
        )
        for line in found["gateways"]
    }
    for line in found["results"]:
        reason = line.get("reason")
        runs[line["gateway"]].results.append(
            Result(
                *(line["scenario"], _decimal(line["true"]), _decimal(line["booked"])),
                certain=not line["marked"],
                answer=reason if line["verdict"] == "refused" else "",
                not_offered=reason,
            )
        )
    for line in found["trials"]:
        run = runs[line["gateway"]]
        if "not_run" in line:
            run.trials_not_run[line["trial"]] = line["not_run"]
        else:
            run.trials.append(_trial_from_json(line))
    return list(runs.values())


def _trial_from_json(line: dict[str, Any]) -> TrialResult:
    billed, booked = Decimal(line["billed"]), Decimal(line["booked"])
    marked_usd = billed - booked - Decimal(line["lost"]) if line["marked"] else Decimal(0)
    return TrialResult(
        *(line["trial"], billed, booked, _decimal(line["budget"]), line["calls"], line["answered"]),
        marked=line["marked"],
        marked_usd=marked_usd,
        in_outage=line["in_outage"],
        answered_in_outage=line["answered_in_outage"],
    )


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
