"""Tests that tollkeeper books the true cost in the scenarios of the billing benchmark."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest
from bench.billing.__main__ import temporary_folder
from bench.billing.gateways.base import Booked
from bench.billing.gateways.ours import DEVIATIONS, Ours
from bench.billing.play import play_all, results
from bench.billing.scenarios import FAULT_SOURCES, LEFT_OUT, Scenario, left_out, load_scenarios
from bench.billing.trials import COST, Trial, load_trials, run_trial
from bench.billing.truth import PRICES, RULES, STATUSES, price
from bench.billing.upstream import Provider

from tests.journeys.exchanges.charges import US, PricedRow, Row, read_priced_rows, read_rows
from tests.support.databases import own_database
from tests.support.tables import each

_scenarios = cache(load_scenarios)
ROWS: dict[str, Row | PricedRow] = {**read_rows(), **read_priced_rows()}


def _exchanges() -> list[Scenario]:
    return [scenario for scenario in _scenarios() if scenario.kind == "exchange"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as found:
        yield found


def test_there_are_enough_scenarios() -> None:
    scenarios = _scenarios()
    assert len(scenarios) >= 150
    assert len({scenario.name for scenario in scenarios}) == len(scenarios)
    assert {scenario.name for scenario in _exchanges()} | set(left_out()) == set(ROWS)
    without_exchange = {"xAI's fee for a refused prompt", "searches of OpenAI's search models"}
    assert set(LEFT_OUT) - set(left_out()) == without_exchange


def test_the_scenarios_have_24_providers() -> None:
    """Gemini's API and Vertex AI count as two. One provider is LiteLLM, if it runs as a proxy."""
    assert len({scenario.provider for scenario in _scenarios()}) == 24


def test_each_scenario_and_each_trial_has_a_source() -> None:
    for source in [*RULES.values(), *STATUSES.values(), *FAULT_SOURCES.values()]:
        assert source["source"]
        assert source["url"] is None or source["url"].startswith("https://")
        if source["read_on"] is not None:
            date.fromisoformat(source["read_on"])
    for source in [*RULES.values(), *STATUSES.values()]:
        # A standard does not change.
        assert source["read_on"] or source["source"].startswith("RFC ")
    assert [scenario.name for scenario in _scenarios() if not scenario.truth.source] == []
    assert [trial.name for trial in load_trials() if not trial.source] == []


def test_each_status_of_a_failed_call_has_a_source() -> None:
    statuses = {scenario.exchange.answer.get("status", 200) for scenario in _scenarios()}
    statuses |= {scenario.fault.first_fails for scenario in _scenarios()}
    statuses |= {scenario.fault.proxy_status for scenario in _scenarios()}
    assert {str(status) for status in statuses - {200, None}} <= set(STATUSES)
    assert all(STATUSES[str(status)]["free"] for status in (500, 503, 429, 529))


@each("scenario", _exchanges, ids=attrgetter("name"))
def test_the_benchmark_counts_as_the_table_of_charges(scenario: Scenario) -> None:
    """The counts were taken from the same documents twice, and must agree."""
    row, counts = ROWS[scenario.name], scenario.truth.counts
    if scenario.name in DEVIATIONS:
        # The table has the amount that tollkeeper charges.
        assert not isinstance(row, Row) or not row.is_charged
    elif isinstance(row, Row) and not row.is_charged:
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


def _named(name: str) -> Scenario:
    [found] = [scenario for scenario in _scenarios() if scenario.name == name]
    return found


def test_a_provider_that_bills_the_whole_answer_leaves_the_cost_of_a_cut_stream_unknown() -> None:
    gemini = _named("gemini-cut-after-2")
    perplexity = _named("perplexity-cut-after-2")
    vllm = _named("vllm-continuous-cut-after-3")
    assert (gemini.truth.usd, perplexity.truth.usd) == (None, None)
    assert vllm.truth.usd


def test_openrouter_bills_an_error_unless_it_is_the_finish_reason() -> None:
    billed = _named("openrouter-error-stream")
    free = _named("openrouter-error-after-output")
    assert (billed.truth.usd, free.truth.usd) == (Decimal("0.000192"), Decimal(0))


def test_a_record_without_an_amount_or_of_a_failed_call_marks_an_unknown_cost() -> None:
    unknown = _named("openai-nginx-504")
    known = _named("openai")
    provider = Provider([unknown, known])

    def certain(scenario: Scenario, booked: Booked) -> bool:
        [result] = results([scenario], provider, {}, {scenario.name: booked}, {})
        return result.certain

    marks = (Booked(None), Booked(Decimal(0), failed=True), Booked(Decimal(1), certain=False))
    assert [certain(unknown, booked) for booked in marks] == [False, False, False]
    assert [certain(known, booked) for booked in marks] == [True, True, False]
    assert certain(unknown, Booked(Decimal(0)))


async def test_tollkeeper_books_every_scenario_exactly_except_the_explained_ones(
    tmp_path: Path, conninfo: str
) -> None:
    """If the exchange does not contain the true cost, the booked amount must not be marked as certain."""
    gateway, scenarios = Ours(conninfo=conninfo), _scenarios()
    async with (
        Provider(scenarios) as provider,
        gateway.running(tmp_path, provider.port, scenarios, []) as session,
    ):
        answers, books = await play_all(session, provider, scenarios)
    found = results(scenarios, provider, answers, books, {})
    wrong = {
        result.scenario: result
        for result in found
        if not result.exact and (result.true is not None or result.certain)
    }
    assert [result for name, result in wrong.items() if name not in DEVIATIONS] == []
    assert set(wrong) == set(DEVIATIONS)


async def overspends_and_loses_nothing(gateway: Ours, folder: Path, trials: list[Trial]) -> None:
    async with (
        Provider([]) as provider,
        gateway.running(folder, provider.port, [], trials) as session,
    ):
        for trial in trials:
            result = await run_trial(session, provider, trial)
            assert COST is not None
            assert result.answered > 0
            recorded = result.booked + result.marked * COST
            assert (trial.name, result.overspent or 0, recorded) == (trial.name, 0, result.true)
            # Only the calls that the kill interrupts have no final amount.
            interrupted = trial.calls - result.answered if trial.kind == "kill_during" else 0
            assert (trial.name, result.marked, result.lost) == (trial.name, interrupted, Decimal(0))
            assert (result.in_outage > 0) == (trial.kind == "restart")
            if trial.kind == "restart":
                assert result.answered == trial.calls + result.answered_in_outage


async def test_tollkeeper_overspends_and_loses_nothing(
    tmp_path: Path, shared_conninfo: str
) -> None:
    """Runs two short trials: a race of calls, and a kill of the gateway."""
    gateway = Ours(conninfo=own_database(shared_conninfo, "billing_trials"))
    race = Trial("race", "race", calls=6, source="", budget_calls=4)
    kill = Trial("kill", "kill", calls=2, source="")
    await overspends_and_loses_nothing(gateway, tmp_path, [race, kill])


@pytest.mark.slow
async def test_tollkeeper_marks_the_calls_that_a_kill_interrupts(
    tmp_path: Path, shared_conninfo: str
) -> None:
    """The calls become unsettled when the lease of the killed gateway has expired."""
    gateway = Ours(conninfo=own_database(shared_conninfo, "billing_kill"))
    kill = Trial("kill", "kill_during", calls=5, source="")
    await overspends_and_loses_nothing(gateway, tmp_path, [kill])


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("processes", [1, 2])
async def test_tollkeeper_overspends_and_loses_nothing_in_each_trial(
    processes: int, folder: Path
) -> None:
    trials = [trial for trial in load_trials() if trial.processes == processes]
    await overspends_and_loses_nothing(Ours(), folder, trials)
