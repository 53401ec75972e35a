"""Tests the tables, the chart and the JSON of the billing benchmark, and the published page."""

import json
import re
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bench.billing.gateways import GATEWAYS
from bench.billing.report import (
    Run,
    as_json,
    as_markdown,
    draw,
    joined,
    json_text,
    left_out_as_markdown,
    runs_from_json,
    trials_as_markdown,
)
from bench.billing.result import Result, TrialResult
from bench.billing.scenarios import load_scenarios
from bench.billing.trials import load_trials

_CENT = Decimal("0.01")
_DOCS = Path(__file__).parents[3] / "docs"
_PAGE = (_DOCS / "billing-benchmark.md").read_text()


def _run(**changes: Any) -> Run:
    found = [
        Result("right", _CENT, _CENT, True, "200"),
        Result("twice", _CENT, 2 * _CENT, True, "200"),
        Result("missing", _CENT, None, True, "200"),
        Result("absent", _CENT, None, True, "", not_offered="no such endpoint"),
        Result("rejected", _CENT, None, True, "400", not_offered="it did not call the provider"),
        Result("unknown", None, _CENT, False, "200"),
        Result("guessed", None, _CENT, True, "200"),
    ]
    race = TrialResult("race", true=3 * _CENT, booked=_CENT, budget=2 * _CENT, calls=9, answered=3)
    restart = TrialResult(
        *("restart", 9 * _CENT, 7 * _CENT, None, 9, 8),
        marked=1,
        marked_usd=_CENT,
        in_outage=2,
        answered_in_outage=1,
    )
    return Run("other", "1.0", found, [race, restart], {"kill": "needs a database"}, **changes)


_ABSENT = Run("absent", "", [], [], {}, missing="could not run here: no such host")


def test_the_tables_count_what_is_exact_and_what_is_not_offered() -> None:
    header, alignment, row, other = as_markdown([_run(), _ABSENT]).splitlines()
    assert header.startswith("| gateway | scenarios | exact bookings | mean error |")
    assert alignment.startswith("|---|--:|--:|--:|---|")
    assert row == (
        "| other 1.0 | 3 | 1 (33.3 %) | 66.7 % | +100 % (`twice`) | 0.030000 | 0.030000 | 1 of 2"
        " | 50 % | needs a database |"
    )
    assert other.startswith("| absent | could not run here: no such host |")
    assert "33.3 (1 of 3)" in draw([_run(), _ABSENT])
    race, restart, kill = trials_as_markdown([_run(), _ABSENT]).splitlines()[2:]
    assert race == (
        "| race | 3 of 9; budget 0.020, billed 0.030, booked 0.010"
        " | could not run here: no such host |"
    )
    assert restart.startswith(
        "| restart | 8 of 9; billed 0.090, booked 0.070, marked calls: 1;"
        " 1 of 2 while the database was down |"
    )
    assert kill == "| kill | needs a database | could not run here: no such host |"


def test_a_gateway_without_a_mark_is_not_counted_as_wrong() -> None:
    run = _run(marks_unknown=False)
    assert " | 0.030000 | not offered | 50 % |" in as_markdown([run])
    assert run.results[-1].verdict(run.marks_unknown) == "not offered"


def test_a_part_that_could_not_run_says_why() -> None:
    """The scenarios of the first run count. The trials of the second run state why they did not run."""
    first = Run("other", "1.0", [Result("right", Decimal(1), Decimal(1), True, "200")], [], {})
    second = Run("other", "1.0", [], [], {"race": "no port"}, missing="no port")
    found = joined([first, second])
    assert (found.missing, found.exact, found.trials_not_run) == (None, 1, {"race": "no port"})


def test_the_cases_that_are_left_out_are_counted_by_reason() -> None:
    reasons = dict.fromkeys("abcd", "it is invented") | {"e": "it shows a limit"}
    assert left_out_as_markdown(reasons).splitlines()[2:] == [
        "| it is invented | 4 |  |",
        "| it shows a limit | 1 | `e` |",
        "| all | 5 |  |",
    ]


def _as_json(run: Run) -> dict[str, Any]:
    kinds = {result.scenario: "exchange" for result in run.results}
    return as_json([run, _ABSENT], kinds, {"odd": "it is invented"}, "a machine", "2026-11-17")


def test_the_json_has_a_line_for_each_scenario_and_trial() -> None:
    found = _as_json(_run())
    verdicts = {line["scenario"]: line["verdict"] for line in found["results"]}
    assert verdicts == {
        "right": "exact",
        "twice": "wrong",
        "missing": "wrong",
        "absent": "not offered",
        "rejected": "refused",
        "unknown": "marked",
        "guessed": "not marked",
    }
    text = json_text(found)
    assert json.loads(text) == found
    lines = [line.rstrip(",") for line in text.splitlines()]
    twice = {"gateway": "other", "scenario": "twice", "kind": "exchange", "true": "0.01"}
    assert json.dumps({**twice, "booked": "0.02", "marked": False, "verdict": "wrong"}) in lines
    assert (
        '{"gateway": "other", "trial": "restart", "calls": 9, "answered": 8, "budget": null,'
        ' "billed": "0.09", "booked": "0.07", "marked": 1, "lost": "0.01", "in_outage": 2,'
        ' "answered_in_outage": 1}'
    ) in lines
    not_run = {"gateway": "other", "trial": "kill", "not_run": "needs a database"}
    assert json.dumps(not_run) in lines
    assert json.dumps({"case": "odd", "reason": "it is invented"}) in lines


@pytest.mark.parametrize("marks_unknown", [True, False])
def test_the_tables_can_be_made_from_the_json(marks_unknown: bool) -> None:
    run = _run(marks_unknown=marks_unknown)
    read = runs_from_json(json.loads(json_text(_as_json(run))))
    assert as_markdown(read) == as_markdown([run, _ABSENT])
    assert trials_as_markdown(read) == trials_as_markdown([run, _ABSENT])
    assert _as_json(read[0]) == _as_json(run)


# The published page. Its results come from `docs/billing.json`, which a complete run writes.


@cache
def _published() -> dict[str, Any] | None:
    path = _DOCS / "billing.json"
    return json.loads(path.read_text()) if path.exists() else None


def _deviations() -> dict[str, list[str]]:
    """Return the scenarios that the page names in its table of each gateway's deviations. A name may
    contain `*`."""
    named: dict[str, list[str]] = {}
    gateway = ""
    for line in _PAGE.partition("## Where a gateway deviates")[2].splitlines():
        if found := re.match(r"\*\*(\w+)\*\*", line):
            gateway = found.group(1)
            named[gateway] = []
        elif line.startswith("|") and gateway:
            named[gateway] += re.findall(r"`([^`]+)`", line.split("|")[2])
    return named


def _matching(patterns: list[str], names: set[str]) -> set[str]:
    found = {name for name in names if any(fnmatchcase(name, one) for one in patterns)}
    unknown = [one for one in patterns if not any(fnmatchcase(name, one) for name in names)]
    assert unknown == []
    return found


def test_the_page_names_only_scenarios_and_trials_that_exist() -> None:
    names = {scenario.name for scenario in load_scenarios()}
    deviations = _deviations()
    assert {"tollkeeper", "LiteLLM", "TensorZero"} <= set(deviations)
    for patterns in deviations.values():
        _matching(patterns, names)
    explained = re.findall(r"--explain ([\w-]+)", _PAGE)
    worst = re.findall(r" % \(`([^`]+)`\)", _PAGE)
    assert explained
    assert worst
    _matching(worst, names)
    _matching(explained, names | {trial.name for trial in load_trials()})


def test_the_page_has_the_tables_of_the_benchmark() -> None:
    assert as_markdown([]) in _PAGE
    assert (
        trials_as_markdown([Run(gateway.name, "", [], [], {}) for gateway in GATEWAYS.values()])
        in _PAGE
    )


def test_the_page_shows_the_published_results() -> None:
    published = _published()
    if published is None:
        return
    runs = runs_from_json(published)
    reasons = {line["case"]: line["reason"] for line in published["left_out"]}
    assert as_markdown(runs) in _PAGE
    assert trials_as_markdown(runs) in _PAGE
    assert left_out_as_markdown(reasons) in _PAGE
    assert (_DOCS / "images" / "billing.svg").read_text() == draw(runs)


def test_the_page_explains_every_deviation_of_the_published_results() -> None:
    published = _published()
    if published is None:
        return
    deviations = _deviations()
    for run in runs_from_json(published):
        verdicts = {result.scenario: result.verdict(run.marks_unknown) for result in run.results}
        wrong = {name for name, verdict in verdicts.items() if verdict == "wrong"}
        not_marked = {name for name, verdict in verdicts.items() if verdict == "not marked"}
        named = _matching(deviations.get(run.gateway, []), wrong | not_marked)
        assert wrong - named == set(), f"the page does not explain {run.gateway}"
