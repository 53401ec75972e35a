"""Tests recorded exchanges whose prices depend on the call: long prompts, audio and service tiers."""

from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.exchanges.caller_reads import ask, check_answer
from tests.journeys.exchanges.charges import (
    US,
    PricedRow,
    read_multipliers,
    read_priced_rows,
    read_tiers,
)
from tests.journeys.exchanges.exchange import PRICED, load
from tests.journeys.exchanges.gateways import exchange_gateways
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tollkeeper.core.money import picousd_from_usd

ROWS = read_priced_rows()
SHORT, LONG = read_tiers()
MULTIPLIERS = read_multipliers()
ABOVE_TOKENS = 100_000
MODEL_SETTINGS = {
    "context_length": 131_072,
    "max_output_length": 8192,
    "input_modalities": ["text", "audio"],
    "token_bounds": {"audio": 1000},
    "pricing": SHORT,
    "price_tiers": [{"above_tokens": ABOVE_TOKENS, "pricing": LONG}],
    "service_tiers": MULTIPLIERS,
    "options": {"service_tier": "service_tier"},
}
IMAGES_TOO = ["text", "image"]
# Service tiers whose price is declared under another name.
SAME_TIERS = {"fast": "priority"}
# The field in which a request names its service tier, by native protocol.
NATIVE = {"messages": "service_tier", "gemini": "serviceTier", "converse": "serviceTier.type"}


PLAYED = [
    pytest.param(exchange.name, face, id=exchange.played_as(face))
    for exchange in (load(name, PRICED) for name in ROWS)
    for face in exchange.asks
]


@pytest.fixture(scope="module")
async def gateways(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, ScriptedGateway]]:
    with_images = {**MODEL_SETTINGS, "output_modalities": IMAGES_TOO}
    models: dict[str, dict[str, Any]] = {
        "chat": with_images,
        "responses": MODEL_SETTINGS,
        **{
            protocol: {**with_images, "options": {"service_tier": tier}}
            for protocol, tier in NATIVE.items()
        },
    }
    async with exchange_gateways(data_dir, conninfo, models) as running:
        yield running
        for scripted in running.values():
            # `balance` also verifies the ledger of all exchanges.
            assert (await scripted.balance())["held"] == 0


def test_every_exchange_has_its_row() -> None:
    assert {path.stem for path in PRICED.iterdir()} == set(ROWS)


@each("row", ROWS.values(), ids=list(ROWS))
def test_every_charge_is_the_sum_of_its_counts(row: PricedRow) -> None:
    declared = LONG if row.prompt > ABOVE_TOKENS else SHORT
    prices = {name: picousd_from_usd(price) for name, price in declared.items()}
    by_token = (
        row.uncached * prices["prompt"]
        + row.cache_read * prices["input_cache_read"]
        + row.cache_write * prices["input_cache_write"]
        + row.input_audio * prices["input_audio"]
        + row.output * prices["completion"]
        + row.output_image * prices["output_image"]
    )
    tier = SAME_TIERS.get(row.service_tier, row.service_tier)
    multiplier = Fraction(MULTIPLIERS.get(tier, "1"))
    assert row.charge == by_token * multiplier + prices["request"]


@pytest.mark.parametrize(("name", "face"), PLAYED)
async def test_an_exchange(gateways: dict[str, ScriptedGateway], name: str, face: str) -> None:
    exchange, row = load(name, PRICED), ROWS[name]
    shared = gateways[exchange.protocol]
    # A hold for images, at the dearest service tier, is larger than the usual credit.
    scripted = await shared.with_tenant(credit=10**14)
    shared.upstream.play(exchange.verb())
    found = await ask(scripted, exchange, face)

    # Some protocols name the model in the path.
    named = {} if exchange.protocol in ("gemini", "converse") else {"model": "upstream-chat"}
    assert scripted.upstream.requests[-1].json == {**exchange.request, **named}
    check_answer(exchange, (row.prompt, row.completion), found, face)
    await scripted.gateway.services.inference.drain(5)
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated) == ("settled", row.counted_by == US)
    assert (entry.cost, entry.overage) == (row.charge, max(0, row.charge - entry.hold))
    assert bool(entry.overage) == bool(row.above_hold)
    above_bound = row.prompt > entry.prompt_tokens_max or row.completion > entry.output_tokens_max
    assert above_bound == bool(row.above_bound)
    activity = await scripted.activity_of(found)
    assert activity.cost_picousd == row.charge
    assert activity.reported_usage == exchange.last_report()
    usage = activity.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (row.prompt, row.completion)
    assert usage.input_audio_tokens == row.input_audio
    assert usage.service_tier == (row.service_tier or None)
