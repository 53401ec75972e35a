"""Tests the metrics and log lines that compare a backend's reported costs with holds and charges."""

from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.scripted_gateway import COMPLETION_PRICE, PROMPT_PRICE, ScriptedGateway
from tests.support.upstream import answer, completion

OVER_HOLD = "a call cost more than its hold"
USD = 10**12


def shown(name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(name, {"backend": "scripted", **labels})
    return found or 0.0


def used(prompt: int, completion_tokens: int, **fields: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion_tokens, **fields}
    return completion(usage=usage)


@pytest.mark.parametrize(
    ("cost", "direction"),
    [("0.001", "reported_more"), ("0.0000001", "charged_more"), ("0.0000028", None)],
)
async def test_the_difference_to_the_price_of_the_backend(
    scripted: ScriptedGateway, cost: str, direction: str | None
) -> None:
    """Checks the metrics of a call with 2 prompt and 3 completion tokens, which cost 0.0000028 USD."""
    charged = 2 * PROMPT_PRICE + 3 * COMPLETION_PRICE
    assert charged == 2_800_000
    names = ("tollkeeper_cost_difference_usd_total", "tollkeeper_cost_differences_total")
    directions = ("reported_more", "charged_more")
    before = {(name, way): shown(name, direction=way) for name in names for way in directions}
    reported = shown("tollkeeper_reported_cost_usd_total")
    scripted.upstream.play(answer(used(2, 3, cost=float(cost))))
    assert (await scripted.entry_of(await scripted.chat())).cost == charged
    assert shown("tollkeeper_reported_cost_usd_total") - reported == pytest.approx(float(cost))
    for way in directions:
        grown = shown(names[1], direction=way) - before[names[1], way]
        assert grown == (1 if way == direction else 0)
        difference = shown(names[0], direction=way) - before[names[0], way]
        expected = abs(float(cost) - charged / USD) if way == direction else 0
        assert difference == pytest.approx(expected, abs=1e-9)


async def test_a_backend_without_a_price_is_not_compared(scripted: ScriptedGateway) -> None:
    before = shown("tollkeeper_reported_cost_usd_total")
    await scripted.chat()
    assert shown("tollkeeper_reported_cost_usd_total") == before


async def test_overage_is_counted_and_told(scripted: ScriptedGateway) -> None:
    names: tuple[tuple[str, dict[str, str]], ...] = (
        ("tollkeeper_overage_calls_total", {}),
        ("tollkeeper_usage_above_bound_reports_total", {"bound": "prompt"}),
        ("tollkeeper_usage_above_bound_reports_total", {"bound": "output"}),
    )
    before = [shown(name, **labels) for name, labels in names]
    usd = shown("tollkeeper_overage_usd_total")
    scripted.upstream.play(answer(used(2000, 1500)))
    with capture_logs() as logs:
        found = await scripted.chat(max_tokens=10)
    entry = await scripted.entry_of(found)
    assert entry.overage == entry.cost - entry.hold > 0
    after = [shown(name, **labels) for name, labels in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]
    assert shown("tollkeeper_overage_usd_total") - usd == pytest.approx(entry.overage / USD)
    [line] = [line for line in logs if line["event"] == OVER_HOLD]
    assert line["log_level"] == "warning"
    assert line["organization_id"] == str(scripted.tenant.organization_id)
    assert line["request_id"] == found.headers["x-request-id"]
    assert line["cost_usd"] == "0.0016"
    assert set(line) == {
        *("event", "log_level", "request_id", "organization_id", "project_id", "model"),
        *("backend", "hold_usd", "cost_usd", "overage_usd"),
    }


async def test_a_call_within_its_hold_is_not_told(scripted: ScriptedGateway) -> None:
    before = shown("tollkeeper_overage_calls_total")
    with capture_logs() as logs:
        await scripted.chat()
    assert OVER_HOLD not in [line["event"] for line in logs]
    assert shown("tollkeeper_overage_calls_total") == before


async def test_a_price_beyond_any_sense_costs_no_activity_record(scripted: ScriptedGateway) -> None:
    """The records of both calls are in one batch. The backend reports the absurd price for the first call."""
    other = await scripted.with_tenant()
    scripted.upstream.play(answer(used(2, 3, cost_in_usd_ticks=10**60)))
    stated = await scripted.chat()
    ordinary = await other.chat()
    for whose, found in ((scripted, stated), (other, ordinary)):
        entry = await whose.activity_of(found)
        assert (entry.status, entry.settlement, entry.reported_cost_picousd) == (
            200,
            "settled",
            None,
        )
