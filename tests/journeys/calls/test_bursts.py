"""Tests that bursts of calls that cost more than their holds do not exceed the overage bound, if the model
is declared to search on its own, or if it has already exceeded its holds."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.constants import constants
from tests.support.gateway import assert_error, running_gateway
from tests.support.scripted_gateway import (
    MODEL,
    ScriptedGateway,
    scripted_gateway,
    scripted_settings,
)
from tests.support.upstream import Peer, Upstream, Verb, answer, completion
from tollkeeper.core.errors import NotFound
from tollkeeper.core.money import usd_from_picousd

USD = 10**12
CREDIT = USD // 100
CALLS = 200
SEARCHES = 28
PRICING = {"prompt": "0.0000001", "completion": "0.0000001", "web_search": "0.005"}
MODEL_SETTINGS: dict[str, Any] = {
    "context_length": 131_072,
    "max_output_length": 8192,
    "pricing": PRICING,
    "token_bounds": {"unbounded": True},
}
# Usage of a model that searches the web although the client does not ask for it.
USAGE = {
    "prompt_tokens": 5296,
    "completion_tokens": 40,
    "total_tokens": 5336,
    "num_search_queries": SEARCHES,
}


class Crowd:
    """Answers calls only when no new call has arrived for 0.3 seconds."""

    def __init__(self) -> None:
        self._arrived = 0

    def verb(self) -> Verb:
        async def play(peer: Peer) -> None:
            self._arrived += 1
            before = 0
            while before != self._arrived:
                before = self._arrived
                await asyncio.sleep(0.3)
            await answer(completion(usage=USAGE))(peer)

        return play


@pytest.mark.parametrize(
    ("bound_usd", "pricing"),
    [(10, PRICING), (1, PRICING), (1, {"web_search": PRICING["web_search"]})],
    ids=["bound 10", "bound 1", "holds of zero"],
)
async def test_no_burst_ends_below_the_overage_bound(
    data_dir: Path, conninfo: str, bound_usd: int, pricing: dict[str, str]
) -> None:
    """Sends 200 calls of 14 cents each at once to two gateways, with a credit of one cent."""
    settings: dict[str, Any] = {
        "credit": 0,
        "model": {**MODEL_SETTINGS, "pricing": pricing},
        "ledger": {"overage_bound_usd": str(bound_usd)},
    }
    async with (
        Upstream(Crowd().verb()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as first,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as second,
    ):
        await first.grant(CREDIT)
        other = replace(second, tenant=first.tenant)
        statuses = await _burst(first, other)
        assert set(statuses) == {200, 402}
        # The bound covers each admitted call: a full context and forty searches.
        assert statuses[200] >= (CREDIT + bound_usd * USD) // (22 * USD // 100) - 1
        balance = await first.balance()
        assert balance["held"] == balance["unsettled"] == 0
        assert -bound_usd * USD <= balance["granted"] - balance["settled"] < 0
        # Both gateways refuse every further call.
        assert set(await _burst(first, other)) == {402}


async def _burst(*gateways: ScriptedGateway) -> Counter[int]:
    answers = await asyncio.gather(
        *[gateways[number % 2].chat(max_tokens=1) for number in range(CALLS)]
    )
    return Counter(found.status_code for found in answers)


@pytest.mark.slow
async def test_plenty_of_credit_is_not_slowed_down(data_dir: Path, conninfo: str) -> None:
    settings: dict[str, Any] = {"credit": 50 * USD, "model": MODEL_SETTINGS}
    async with (
        Upstream(Crowd().verb()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as scripted,
    ):
        assert await _burst(scripted, scripted) == {200: CALLS}


async def test_a_call_that_alone_may_exceed_the_bound_is_refused(
    data_dir: Path, conninfo: str
) -> None:
    settings: dict[str, Any] = {
        "credit": CREDIT,
        "model": MODEL_SETTINGS,
        "ledger": {"overage_bound_usd": "0.1"},
    }
    async with (
        Upstream(Crowd().verb()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as scripted,
    ):
        refused = await scripted.chat(max_tokens=1)
        assert refused.status_code == 402
        assert (
            "overage bound cannot cover this call: needed 0.2139264, available 0.01"
            in (refused.json()["error"]["message"])
        )
        assert "Retry-After" not in refused.headers
        await scripted.gateway.services.accounts.overage_set(
            scripted.tenant.organization_id, USD // 4
        )
        assert (await scripted.chat(max_tokens=1)).status_code == 200


@pytest.mark.parametrize(
    "pricing",
    [PRICING, {"web_search": PRICING["web_search"]}],
    ids=["priced tokens", "holds of zero"],
)
async def test_only_the_first_burst_of_an_undeclared_model_exceeds_the_bound(
    data_dir: Path, conninfo: str, pricing: dict[str, str]
) -> None:
    """Sends 200 calls at once to a model of which nobody knows that it searches. They may exceed the
    bound, once. Then operators are alerted, and both gateways are warned, the one that settled no
    call by the database."""
    settings: dict[str, Any] = {
        "credit": 0,
        "model": {**MODEL_SETTINGS, "pricing": pricing, "token_bounds": {}},
        "ledger": {"overage_bound_usd": "1"},
    }
    async with (
        Upstream(Crowd().verb()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as first,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as second,
    ):
        await second.gateway.services.excesses.load_first()
        await first.grant(CREDIT)
        # The credit covers all holds. The client has a hundred connections.
        assert (await _burst(first, first))[200] >= 100
        assert (await first.balance())["settled"] >= 14 * USD
        alerts = second.gateway.services.alerts
        await alerts.check()
        [alert] = [one for one in await alerts.alert_list() if one.kind == "exceeded_hold"]
        entry = (await first.entries())[0]
        assert alert.subject == {"model": MODEL, "backend": "scripted"}
        assert f"cost {usd_from_picousd(entry.cost)} USD" in alert.detail
        assert f"hold was {usd_from_picousd(entry.hold)} USD" in alert.detail
        for gateways in ((first, first), (second, second), (first, second)):
            tenant = await gateways[0].gateway.make_tenant(credit=CREDIT, forgets_excesses=False)
            # A worker does this every two seconds.
            await second.gateway.services.excesses.load()
            warned = [replace(gateway, tenant=tenant) for gateway in gateways]
            statuses = await _burst(*warned)
            assert set(statuses) == {200, 402}
            # Each admitted call counts with what a call cost before: fourteen cents.
            assert 6 <= statuses[200] <= 8
            balance = await warned[0].balance()
            assert -USD <= balance["granted"] - balance["settled"] < 0


async def test_a_new_process_is_warned_before_its_first_call(data_dir: Path, conninfo: str) -> None:
    settings: dict[str, Any] = {
        "model": {**MODEL_SETTINGS, "token_bounds": {}},
        "ledger": {"overage_bound_usd": "0.1"},
    }
    async with Upstream(answer(completion(usage=USAGE))) as upstream:
        async with scripted_gateway(
            data_dir, conninfo, upstream, credit=CREDIT, **settings
        ) as first:
            assert (await first.chat(max_tokens=1)).status_code == 200
            tenant = await first.gateway.make_tenant(credit=CREDIT, forgets_excesses=False)
        later = scripted_settings(data_dir, upstream.url, **settings)
        async with running_gateway(later, conninfo) as gateway:
            second = ScriptedGateway(gateway, upstream, tenant, probe_tenant=tenant)
            refused = await second.chat(max_tokens=1)
            assert refused.status_code == 402
            assert "overage bound cannot cover this call" in refused.json()["error"]["message"]
            # What happened fades.
            await second.sql(
                "UPDATE observed_excesses SET noted_at = noted_at - interval '25 hours'"
            )
            await gateway.services.excesses.load()
            assert (await second.chat(max_tokens=1)).status_code == 200


async def test_a_gateway_that_cannot_read_the_excesses(data_dir: Path, conninfo: str) -> None:
    """It goes on with what it knows. A new gateway knows nothing, so it admits no call."""
    settings: dict[str, Any] = {"model": {**MODEL_SETTINGS, "token_bounds": {}}}
    ordinary = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    async with (
        Upstream(answer(completion(usage=ordinary))) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as first,
    ):
        assert (await first.chat(max_tokens=1)).status_code == 200
        later = scripted_settings(data_dir, upstream.url, **settings)
        async with running_gateway(later, conninfo) as gateway:
            second = ScriptedGateway(gateway, upstream, first.tenant, probe_tenant=first.tenant)
            with constants({"money.overage.service._LOAD_TIMEOUT_S": 0.3}):
                async with first.gateway.services.database.transaction() as connection:
                    await connection.execute("LOCK TABLE observed_excesses")
                    assert (await first.chat(max_tokens=1)).status_code == 200
                    refused = await second.chat(max_tokens=1)
                    assert_error(refused, 503, "service_unavailable")
                    assert "Retry-After" in refused.headers
            assert (await second.chat(max_tokens=1)).status_code == 200
        assert [entry.status for entry in await first.entries()] == ["settled"] * 3


async def test_a_forgotten_model_is_trusted_again(data_dir: Path, conninfo: str) -> None:
    settings: dict[str, Any] = {
        "credit": USD,
        "model": {**MODEL_SETTINGS, "token_bounds": {}},
        "ledger": {"overage_bound_usd": "0"},
    }
    async with (
        Upstream(answer(completion(usage=USAGE))) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **settings) as scripted,
    ):
        excesses = scripted.gateway.services.excesses
        assert (await scripted.chat(max_tokens=1)).status_code == 200
        [case] = await excesses.overage_models()
        [entry] = await scripted.entries()
        assert (case.model, case.backend) == (MODEL, "scripted")
        assert (case.hold_picousd, case.cost_picousd) == (entry.hold, entry.cost)
        poor = await scripted.with_tenant(credit=CREDIT, forgets_excesses=False)
        assert (await poor.chat(max_tokens=1)).status_code == 402
        with pytest.raises(NotFound, match="at the backend another"):
            await excesses.overage_forget(MODEL, "another")
        await excesses.overage_forget(MODEL)
        await excesses.load()
        assert await excesses.overage_models() == []
        assert (await poor.chat(max_tokens=1)).status_code == 200
