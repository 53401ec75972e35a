"""Tests `tollkeeper model import`, which compares public prices with the catalogue. The models of these tests
are old, so their prices do not change."""

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices.types import ModelInfo, ModelPrice, Provider, Tier, TieredPrices

from tests.support.program import Program, write_config
from tollkeeper.setup.settings.places import SettingsError
from tollkeeper.setup.settings.price_list import (
    PriceDifference,
    PriceReview,
    _differences,
    toml_text,
)
from tollkeeper.setup.settings.schema import ModelSettings

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
    found = _found(input_mtok=tiers, output_mtok=Decimal(10), web_searches_kcount=Decimal(10))
    assert found == {
        "pricing.prompt": ("0.00000125", ""),
        "pricing.completion": ("0.00001", ""),
        "pricing.web_search": ("0.01", ""),
        "price_tiers.200000.prompt": ("0.0000025", ""),
        "price_tiers.200000.completion": ("0.00001", ""),
    }


_TIERED = """
[[backends]]
name = "google"
preset = "gemini"

[[models]]
id = "example/gemini"
backend = "google"
upstream_model = "gemini-1.5-pro"
context_length = 2000000
max_output_length = 8192
"""


def test_prices_with_tiers_are_written_as_the_settings_read_them(
    program: Program, tmp_path: Path, data_dir: Path
) -> None:
    """A model whose prices were left out would be free."""
    priced = program.with_config(write_config(tmp_path, data_dir, more=_TIERED))
    output = tmp_path / "new.toml"
    shown = priced.json("model", "import", "--output", str(output))
    settings = {one["setting"] for one in shown["data"]}
    assert {"pricing.prompt", "price_tiers.128000.prompt"} <= settings
    lines = output.read_text().partition("# example/gemini\n")[2]
    written = tomllib.loads(lines)
    assert set(written["pricing"]) == {"prompt", "completion"}
    (tier,) = written["price_tiers"]
    assert (tier["above_tokens"], set(tier["pricing"])) == (128_000, set(written["pricing"]))
    assert Decimal(tier["pricing"]["prompt"]) == 2 * Decimal(written["pricing"]["prompt"])

    pasted = program.with_config(write_config(tmp_path, data_dir, more=_TIERED + lines))
    assert [one for one in pasted.json("model", "import")["data"] if "pric" in one["setting"]] == []


def test_declared_prices_and_tiers_are_kept_beside_the_listed_ones() -> None:
    model = ModelSettings.model_validate(
        {
            "id": "m",
            "backend": "b",
            "upstream_model": "u",
            "context_length": 1,
            "max_output_length": 1,
            "pricing": {"prompt": "0.000001", "input_audio": "0.000003", "image": "0.1"},
            "price_tiers": [
                {"above_tokens": 5, "pricing": {"prompt": "0.000002", "input_audio": "0.000004"}}
            ],
        }
    )
    listed = {0: {"prompt": "0.000007"}, 5: {"prompt": "0.000008"}, 9: {"prompt": "0.000009"}}
    difference = PriceDifference("m", "p/u", "pricing.prompt", "0.000001", "0.000007")
    text = toml_text(PriceReview((difference,), (), {"m": listed}), (model,))
    assert tomllib.loads(text) == {
        "pricing": {"prompt": "0.000007", "input_audio": "0.000003", "image": "0.1"},
        "price_tiers": [
            {"above_tokens": 5, "pricing": {"prompt": "0.000008", "input_audio": "0.000004"}},
            {"above_tokens": 9, "pricing": {"prompt": "0.000009", "input_audio": "0.000003"}},
        ],
    }


def test_a_price_that_cannot_be_written_writes_nothing() -> None:
    problem = "A price cannot be negative."
    difference = PriceDifference("m", "p/u", "pricing.prompt", None, "-1", problem)
    with pytest.raises(
        SettingsError, match=r"Nothing was written.*m: pricing.prompt is -1\. A price"
    ):
        toml_text(PriceReview((difference,), (), {"m": {0: {"prompt": "-1"}}}), ())
