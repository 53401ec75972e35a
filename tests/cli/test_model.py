"""`tollkeeper model import`: a list of prices beside the catalogue."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.support.program import Program, write_config

_LIST = {
    "sample_spec": {"input_cost_per_token": "a sentence"},
    "chat-small": {
        "input_cost_per_token": 3e-07,
        "output_cost_per_token": 0.0000012,
        "cache_read_input_token_cost": 1.5e-08,
        "max_input_tokens": 32768,
        "max_output_tokens": 16384,
        "litellm_provider": "example",
    },
    "other": {"input_cost_per_token": 2e-07},
}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(_LIST))
    return path


@pytest.fixture
def priced(program: Program, tmp_path: Path, data_dir: Path) -> Program:
    """One model, `example`, whose prompt costs 0.0000002."""
    return program.with_config(write_config(tmp_path, data_dir))


def test_differences_are_shown_exactly_and_nothing_is_written(
    priced: Program, listed: Path
) -> None:
    before = priced.config.read_text()
    shown = priced.json("model", "import", str(listed))
    assert {one["setting"]: (one["declared"], one["listed"]) for one in shown["data"]} == {
        "pricing.prompt": ("0.0000002", "0.0000003"),
        "pricing.completion": (None, "0.0000012"),
        "pricing.input_cache_read": (None, "0.000000015"),
        "max_output_length": ("8192", "16384"),
    }
    assert (shown["unknown"], shown["output"]) == ([], None)
    assert priced.config.read_text() == before
    assert "0.0000003" in priced.run("model", "import", str(listed)).out


def test_a_name_of_the_list_can_be_given(priced: Program, listed: Path) -> None:
    agreeing = priced.json("model", "import", str(listed), "--name", "example=other")
    assert agreeing["data"] == []
    unknown = priced.json("model", "import", str(listed), "--name", "example=absent")
    assert unknown["unknown"] == ["example"]
    shown = priced.run("model", "import", str(listed), "--name", "example=absent").out
    assert "agrees" not in shown
    assert priced.run("model", "import", str(listed), "--name", "nonsense").code == 2
    refusal = priced.refusal("model", "import", str(listed), "--name", "exmaple=other")
    assert refusal == "There is no model 'exmaple' in the catalogue."


def test_prices_are_written_to_a_new_file_where_it_is_asked_for(
    priced: Program, listed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new.toml"
    priced.json("model", "import", str(listed), "--output", str(output))
    assert tomllib.loads(output.read_text())["pricing"] == {
        "prompt": "0.0000003",
        "completion": "0.0000012",
        "input_cache_read": "0.000000015",
    }
    refusal = priced.refusal("model", "import", str(listed), "--output", str(output))
    assert "exists already" in refusal


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]", "must hold one object"), ("{", "is not JSON"), (None, "cannot be read")],
)
def test_a_list_that_cannot_be_read(
    priced: Program, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_text(content)
    assert said in priced.refusal("model", "import", str(path))


def test_a_price_that_the_ledger_cannot_hold_is_named(priced: Program, tmp_path: Path) -> None:
    path = tmp_path / "fine.json"
    path.write_text('{"chat-small": {"input_cost_per_token": 1e-13, "output_cost_per_token": -1}}')
    shown = priced.json("model", "import", str(path))["data"]
    assert ["finer" in one["problem"] for one in shown] == [True, False]
    assert shown[1]["problem"] == "A price cannot be negative."
