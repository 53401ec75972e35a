"""Tests `tollkeeper model import`, which compares public prices with the catalogue. The models of these tests
are old, so their prices do not change."""

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices.types import ModelInfo, ModelPrice, Provider, Tier, TieredPrices

from tests.support.program import Program, write_config
from tollkeeper.settings.price_list import _differences
from tollkeeper.settings.schema import ModelSettings

_MODEL = """
[[backends]]
name = "anthropic"
preset = "anthropic"

[[models]]
id = "example/claude"
backend = "anthropic"
upstream_model = "claude-2"
context_length = 100000
max_output_length = 4096
pricing = { prompt = "0.000007", image = "0.1" }
"""


@pytest.fixture
def priced(program: Program, tmp_path: Path, data_dir: Path) -> Program:
    """Returns a program with two models. The price list lacks `example`, and its other price differs."""
    return program.with_config(write_config(tmp_path, data_dir, more=_MODEL))


def test_differences_are_shown_exactly_and_nothing_is_written(priced: Program) -> None:
    before = priced.config.read_text()
    shown = priced.json("model", "import")
    assert {one["setting"]: (one["declared"], one["listed"]) for one in shown["data"]} == {
        "pricing.prompt": ("0.000007", "0.000008"),
        "pricing.completion": (None, "0.000024"),
        "context_length": ("100000", "200000"),
    }
    assert {one["listed_as"] for one in shown["data"]} == {"anthropic/claude-2"}
    assert (shown["unknown"], shown["output"]) == (["example"], None)
    assert priced.config.read_text() == before
    assert "0.000024" in priced.run("model", "import").out


def test_a_name_of_the_list_can_be_given(priced: Program) -> None:
    named = ("--name", "example=anthropic/claude-2")
    shown = priced.json("model", "import", *named)
    assert "example" in {one["model"] for one in shown["data"]}
    assert shown["unknown"] == []
    absent = priced.json("model", "import", "--name", "example=anthropic/absent")
    assert absent["unknown"] == ["example"]
    assert priced.run("model", "import", "--name", "example=nonsense").code == 2
    refusal = priced.refusal("model", "import", "--name", "exmaple=anthropic/claude-2")
    assert refusal == "There is no model 'exmaple' in the catalogue."


def test_prices_are_written_to_a_new_file_where_it_is_asked_for(
    priced: Program, tmp_path: Path
) -> None:
    output = tmp_path / "new.toml"
    priced.json("model", "import", "--output", str(output))
    assert tomllib.loads(output.read_text())["pricing"] == {
        "prompt": "0.000008",
        "image": "0.1",
        "completion": "0.000024",
    }
    refusal = priced.refusal("model", "import", "--output", str(output))
    assert "exists already" in refusal


def _found(**prices: Decimal | TieredPrices) -> dict[str, tuple[str, str]]:
    model = ModelSettings(
        id="m", backend="b", upstream_model="u", context_length=1, max_output_length=1
    )
    listed = ModelInfo("u", match=None, prices=ModelPrice(**prices))  # type: ignore[arg-type]
    provider = Provider(id="p", name="P", api_pattern="x")
    return {one.setting: (one.listed, one.problem) for one in _differences(model, provider, listed)}


def test_a_price_that_the_ledger_cannot_hold_is_named() -> None:
    found = _found(input_mtok=Decimal("0.0000001"), output_mtok=Decimal(-1))
    assert "finer" in found["pricing.prompt"][1]
    assert found["pricing.completion"][1] == "A price cannot be negative."


def test_units_and_tiers() -> None:
    tiers = TieredPrices(base=Decimal("1.25"), tiers=[Tier(start=200_000, price=Decimal("2.5"))])
    assert _found(input_mtok=tiers, web_searches_kcount=Decimal(10)) == {
        "pricing.prompt": ("0.00000125", "The list has price tiers as well."),
        "pricing.web_search": ("0.01", ""),
    }
