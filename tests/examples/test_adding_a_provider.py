"""Tests that the preset in CONTRIBUTING.md is in the code, and that each preset has at most ten lines."""

import re
import textwrap
from pathlib import Path

from tests.journeys.exchanges.charges import read_rows
from tests.journeys.exchanges.exchange import RECORDED
from tollkeeper.providers import presets

_CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
_ENTRY = re.compile(r"^    \"[\w-]+\": Preset\(\n.*?^    \),$", re.MULTILINE | re.DOTALL)
_LINES_MAX = 10


def _entries() -> list[str]:
    """Returns the source text of each preset."""
    found = _ENTRY.findall(Path(presets.__file__).read_text())
    assert len(found) == len(presets.PRESETS)
    return [textwrap.dedent(entry) for entry in found]


def _section() -> str:
    return _CONTRIBUTING.read_text().partition("## Adding a provider")[2].partition("\n## ")[0]


def test_what_is_shown_is_what_runs() -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```$", _section(), re.MULTILINE | re.DOTALL)
    assert shown.rstrip() in _entries()


def test_the_exchange_that_is_named_exists() -> None:
    (name,) = re.findall(r"`(\S+)\.json`", _section())
    assert (RECORDED / f"{name}.json").exists()
    assert name in read_rows()


def test_a_preset_has_ten_lines_at_most() -> None:
    assert all(len(entry.splitlines()) <= _LINES_MAX for entry in _entries())
