"""Tests that the dashboard and the alert rules name only metrics and labels that exist."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from tests.journeys.clients.debian import debian_program
from tests.support.tables import each
from tollkeeper.entry import operator_listener
from tollkeeper.setup import build_app

_DEPLOY = Path(__file__).parents[2] / "deploy"
_RULES = _DEPLOY / "prometheus" / "alerts.yml"
_DASHBOARD = _DEPLOY / "grafana" / "tollkeeper.json"
_OUR_METRIC = re.compile(r"\btollkeeper_\w+")
_LABELS = re.compile(r"\bby \(([^)]*)\)|\{\s*(\w+)\s*(?:=~|!=|=)")
# Labels that Prometheus and its client library add.
_ADDED_LABELS = {"le", "instance", "job"}
_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def _shown_metrics() -> dict[str, set[str]]:
    """Returns each name that /metrics shows, with its labels."""
    # The imports of the application and the operator listener define every metric.
    assert build_app.__module__ == "tollkeeper.setup.app"
    assert operator_listener.__name__ == "tollkeeper.entry.operator_listener"
    found: dict[str, set[str]] = {}
    for collector in set(REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and collector._name.startswith("tollkeeper_"):
            for suffix in _SUFFIXES[str(collector._type)]:
                found[collector._name + suffix] = set(collector._labelnames)
    return found


def _expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"]
        for inner in node.values():
            yield from _expressions(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _expressions(inner)


def _rules() -> list[str]:
    """Returns the expressions of the alert rules: the texts between `expr:` and `for:` or `labels:`."""
    return re.findall(r"expr: (?:\|\n)?(.*?)\n\s+(?:for|labels):", _RULES.read_text(), re.DOTALL)


def _all_expressions() -> list[str]:
    return [*_expressions(json.loads(_DASHBOARD.read_text())), *_rules()]


def test_there_are_panels_and_rules() -> None:
    assert len(_rules()) == _RULES.read_text().count("- alert:") > 10
    assert len(list(_expressions(json.loads(_DASHBOARD.read_text())))) > 20


@each("expression", _all_expressions())
def test_every_metric_and_label_exists(expression: str) -> None:
    shown = _shown_metrics()
    names = _OUR_METRIC.findall(expression)
    if not names:
        assert expression.startswith("up{")
        return
    assert set(names) <= set(shown), expression
    known = set().union(*(shown[name] for name in names)) | _ADDED_LABELS
    for several, one in _LABELS.findall(expression):
        used = {label.strip() for label in (several or one).split(",")}
        assert used <= known, expression


def test_every_metric_of_calls_is_on_the_dashboard() -> None:
    on_it = set(_OUR_METRIC.findall(" ".join(_expressions(json.loads(_DASHBOARD.read_text())))))
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in on_it}
    missing = {
        name
        for name in _shown_metrics()
        if re.sub(r"_(total|bucket|sum|count)$", "", name) not in families
    }
    assert missing <= {
        "tollkeeper_dropped_activity_records_total",
        "tollkeeper_dropped_log_lines_total",
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(_DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.slow
@each("line", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files(line: tuple[str, str]) -> None:
    kind, name = line
    _promtool("check", kind, str(_DEPLOY / "prometheus" / name))


@pytest.mark.slow
@each(
    ("per_minute", "alerts"),
    [
        ({"200": 30, "502": 3}, True),
        ({"200": 100, "502": 3}, False),
        # Clients cause 400 and 501.
        ({"200": 30, "501": 300, "400": 300}, False),
        # They can't hide an outage by many faulty requests.
        ({"400": 3000, "503": 30}, True),
        ({"400": 300, "503": 1}, False),
    ],
)
def test_errors_are_counted_by_who_caused_them(
    per_minute: dict[str, int], alerts: bool, tmp_path: Path
) -> None:
    series = [
        {
            "series": f'tollkeeper_requests_total{{operation="chat_create",status="{status}"}}',
            "values": f"0+{requests}x20",
        }
        for status, requests in per_minute.items()
    ]
    firing = {
        "expr": 'count(ALERTS{alertname="TollkeeperErrors",alertstate="firing"})',
        "eval_time": "15m",
        "exp_samples": [{"value": 1, "labels": "{}"}] * alerts,
    }
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [firing]}
    described = {"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": [case]}
    test = tmp_path / "test.yml"
    test.write_text(json.dumps(described))
    _promtool("test", "rules", str(test))


def _promtool(*arguments: str) -> None:
    promtool = debian_program("prometheus", "usr/bin/promtool")
    done = subprocess.run(
        [str(promtool.program), *arguments],
        env={**os.environ, **promtool.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
