"""Tests that every alert has a section in the runbook, and that every rule links to its section."""

import re
from pathlib import Path

import pytest
import yaml
from tools.site import slug

from tests.support.documents import anchors_of
from tollkeeper.reports.alerts.rule import AlertKind

_ROOT = Path(__file__).parents[2]
_RUNBOOK = _ROOT / "docs" / "runbook.md"
_SECTIONS = {
    name: section
    for section in re.split(r"^## ", _RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    for name in re.findall(r"`(\w+)`", section.split("**Alerts:** ")[1].split("\n\n")[0])
}
_RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((_ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
}


def test_a_share_is_alerted_only_with_traffic() -> None:
    """One failure among two requests is no outage, so it must not raise an alert."""
    shares = [rule for rule in _RULES.values() if "\n  / sum" in rule["expr"]]
    assert {rule["alert"] for rule in shares} == {"TollkeeperErrors", "TollkeeperMissingVerdicts"}
    for rule in shares:
        assert re.search(
            r"and sum by \(\w+\) \(increase\([^()]+\[\d+m\]\)\) >= 20\s*$", rule["expr"]
        )


def test_every_kind_and_every_rule_has_its_section() -> None:
    assert set(_SECTIONS) == {kind.value for kind in AlertKind} | set(_RULES)


@pytest.mark.parametrize("name", sorted(_SECTIONS))
def test_a_section_has_three_checks_commands_and_a_fix(name: str) -> None:
    section = _SECTIONS[name]
    assert re.findall(r"^(\d)\. ", section, re.MULTILINE) == ["1", "2", "3"]
    assert "```sh" in section
    assert "**Fix:** " in section


@pytest.mark.parametrize("name", sorted(_RULES))
def test_a_rule_links_to_its_section(name: str) -> None:
    page, _, anchor = _RULES[name]["annotations"]["runbook_url"].partition("#")
    # The address of the page that `make docs` builds.
    assert page == "https://docs.example.com/docs/runbook.html"
    assert anchor in anchors_of(_RUNBOOK)
    assert anchor == slug(_SECTIONS[name].split("\n")[0])
