"""Tests recorded exchanges with every provider: the exact charge, the answer, the record and the hold."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.exchanges.caller_reads import ask, check_answer
from tests.journeys.exchanges.charges import US, Row, read_prices, read_rows
from tests.journeys.exchanges.exchange import RECORDED, load
from tests.journeys.exchanges.gateways import exchange_gateways
from tests.support.proof import Proof
from tests.support.scripted_gateway import Entry, ScriptedGateway
from tests.support.tables import each
from tollkeeper.core.declared_prices import pricing_from_declared

PRICES = read_prices()
ROWS = read_rows()
MODEL_SETTINGS: dict[str, Any] = {
    "context_length": 131_072,
    "max_output_length": 8192,
    "supported_features": ["tools", "reasoning", "web_search"],
    "pricing": PRICES,
}
# The protocols of native wires.
NATIVE = ("messages", "gemini", "converse", "bedrock_messages")
PLAYED = [
    pytest.param(exchange.name, face, id=exchange.played_as(face))
    for exchange in map(load, ROWS)
    for face in exchange.asks
]


@pytest.fixture(scope="module")
async def gateways(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, ScriptedGateway]]:
    features = [*MODEL_SETTINGS["supported_features"], "structured_outputs"]
    native = {**MODEL_SETTINGS, "supported_features": features}
    models = {
        **dict.fromkeys(("chat", "responses"), MODEL_SETTINGS),
        **dict.fromkeys(NATIVE, native),
    }
    async with exchange_gateways(data_dir, conninfo, models, map(load, ROWS)) as running:
        yield running
        for scripted in running.values():
            # `balance` also verifies the ledger of all exchanges.
            assert (await scripted.balance())["held"] == 0


def test_every_exchange_has_its_row() -> None:
    recorded = {path.stem for path in RECORDED.iterdir()}
    assert recorded == set(ROWS)


@each("row", ROWS.values(), ids=list(ROWS))
def test_every_charge_is_the_sum_of_its_counts(row: Row) -> None:
    prices = pricing_from_declared(PRICES, param="pricing")
    charge = 0
    if row.is_charged:
        charge = (
            row.uncached * prices.prompt
            + row.cache_read * prices.input_cache_read
            + row.cache_write * prices.input_cache_write
            + row.cache_write_1h * prices.input_cache_write_1h
            + row.output * prices.completion
            + row.searches * prices.web_search
            + prices.request
        )
    assert row.charge == charge


def test_no_hold_is_below_its_bill(proof: Proof) -> None:
    """Counts the results that `test_an_exchange` checks for each exchange."""
    below = sorted(name for name, row in ROWS.items() if row.above_hold)
    print(f"{len(ROWS)} exchanges, {len(below)} below")  # noqa: T201 - the number is the result
    proof.count(
        "recorded exchanges whose hold covers the bill", len(ROWS) - len(below), of=len(ROWS)
    )
    assert below == []


@pytest.mark.parametrize(("name", "face"), PLAYED)
async def test_an_exchange(
    gateways: dict[str, ScriptedGateway],
    name: str,
    face: str,
) -> None:
    exchange, row = load(name), ROWS[name]
    scripted = gateways.get(name) or gateways[exchange.protocol]
    scripted.upstream.play(exchange.verb())
    found = await ask(scripted, exchange, face)

    sent = scripted.upstream.requests[-1]
    if exchange.protocol in ("gemini", "converse", "bedrock_messages"):
        assert re.search(r"/models?/upstream-chat[:/]", sent.path)
        assert sent.json == exchange.request
    else:
        assert sent.json == {**exchange.request, "model": "upstream-chat"}
    prompt = exchange.told_prompt_tokens or row.prompt
    check_answer(exchange, (prompt, row.output) if row.is_charged else None, found, face)
    await scripted.gateway.services.inference.drain(5)
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated) == (row.status, row.counted_by == US)
    _check_bounds(row, prompt, entry)
    activity = await scripted.activity_of(found)
    assert activity.settlement == row.status
    assert activity.cost_picousd == (None if row.status == "unsettled" else row.charge)
    assert activity.reported_usage == exchange.last_report()
    if row.is_charged:
        usage = activity.usage
        assert usage is not None
        written = row.cache_write + row.cache_write_1h
        assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, row.output)
        assert (usage.cached_tokens, usage.web_searches) == (row.cache_read, row.searches)
        assert usage.cache_write_tokens + usage.cache_write_1h_tokens == written


def _check_bounds(row: Row, prompt: int, entry: Entry) -> None:
    above_hold = max(0, row.charge - entry.hold)
    assert (entry.cost, entry.overage) == (row.charge, above_hold)
    assert bool(above_hold) == bool(row.above_hold), (
        f"the charge of {row.exchange} is {row.charge}, its hold {entry.hold} picousd"
    )
    output_max = entry.choices * entry.output_tokens_max
    above_bound = prompt > entry.prompt_tokens_max or row.output > output_max
    assert above_bound == bool(row.above_bound), (
        f"{row.exchange} used {prompt} and {row.output} tokens, its bounds are"
        f" {entry.prompt_tokens_max} and {output_max}"
    )
