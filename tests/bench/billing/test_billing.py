"""The billing benchmark: tollkeeper books the true cost in every scenario."""

from decimal import Decimal
from pathlib import Path

from bench.billing.gateways.ours import Ours
from bench.billing.play import play_all, results
from bench.billing.scenarios import left_out, load_scenarios
from bench.billing.truth import PRICES, price
from bench.billing.upstream import Provider

from tests.journeys.exchanges.charges import US, PricedRow, Row, read_priced_rows, read_rows
from tests.support.tables import each

SCENARIOS = load_scenarios()
EXCHANGES = [scenario for scenario in SCENARIOS if scenario.kind == "exchange"]
ROWS: dict[str, Row | PricedRow] = {**read_rows(), **read_priced_rows()}


def test_there_are_enough_scenarios() -> None:
    assert len(SCENARIOS) >= 150
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert {scenario.name for scenario in EXCHANGES} | set(left_out()) == set(ROWS)


@each("name", [scenario.name for scenario in EXCHANGES])
def test_the_benchmark_counts_as_the_table_of_charges(name: str) -> None:
    """Two people who read the same documents should agree."""
    [scenario] = [scenario for scenario in EXCHANGES if scenario.name == name]
    row, counts = ROWS[name], scenario.truth.counts
    if isinstance(row, Row) and not row.is_charged:
        assert scenario.truth.usd == (0 if row.status == "released" else None)
    elif row.counted_by == US:
        assert scenario.truth.usd is None
    else:
        found = (counts["prompt"], counts["cache_read"], counts["completion"])
        assert found == (row.uncached, row.cache_read, row.output)


def test_the_price_of_a_long_prompt_at_another_tier() -> None:
    counts = {"prompt": 100_001, "cache_read": 0, "cache_write": 0, "cache_write_1h": 0}
    counts |= {"input_audio": 0, "completion": 10, "web_search": 2}
    card = {**PRICES["conditional"], "above": {**PRICES["conditional"]["above"], "web_search": "1"}}
    usd, _ = price(counts, card, "flex")
    assert usd == (100_001 * Decimal("0.000006") + 10 * Decimal("0.0000225")) / 2 + 2


async def test_tollkeeper_books_every_scenario_exactly(tmp_path: Path, conninfo: str) -> None:
    """If the true cost is not in the exchange, the amount is marked as an estimate or as open."""
    gateway = Ours(conninfo=conninfo)
    async with (
        Provider(SCENARIOS) as provider,
        gateway.running(tmp_path, provider.port, SCENARIOS) as session,
    ):
        answers, books = await play_all(session, provider, SCENARIOS)
    found = results(SCENARIOS, provider, answers, books, {})
    wrong = [
        result
        for result in found
        if not result.exact and (result.true is not None or result.certain)
    ]
    assert wrong == []
