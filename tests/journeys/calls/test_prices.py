"""Tests prices that depend on the call: the hold, the stored prices, the charge and the shown price."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway, read_stream
from tests.support.upstream import DONE, USAGE, Peer, answer, chat, chunk, completion, sse, stream
from tollkeeper.core.estimate import estimate_tokens

# 2033-05-18T03:33:20Z
CHANGE = 2_000_000_000
PATIENCE_S = 20
MICRO = 10**6
PROMPT, COMPLETION = USAGE["prompt_tokens"], USAGE["completion_tokens"]


class MovingClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = CHANGE - 1

    def __call__(self) -> int:
        return self.now


def tier(prompt: str, completion: str) -> dict[str, str]:
    return {"prompt": prompt, "completion": completion}


MODEL_SETTINGS: dict[str, Any] = {
    "pricing": tier("0.000001", "0.000002"),
    "price_tiers": [{"above_tokens": 200, "pricing": tier("0.000003", "0.000004")}],
    "service_tiers": {"priority": "2", "unasked": "default"},
    "options": {"service_tier": "service_tier"},
    "price_changes": [
        {"valid_from": "2033-05-18T03:33:20Z", "pricing": tier("0.00001", "0.00002")}
    ],
}


@pytest.fixture
def clock() -> MovingClock:
    return MovingClock()


@pytest.fixture
async def scripted(
    data_dir: Path, conninfo: str, clock: MovingClock
) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        backend={"native_n": False},
        model=MODEL_SETTINGS,
        clock=clock,
    ) as running:
        yield running


async def shown_price(scripted: ScriptedGateway) -> str:
    path = f"/v1/models/{MODEL.replace('/', '%2F')}"
    read = await scripted.gateway.client.get(path, headers=scripted.tenant.as_customer)
    price: str = read.json()["pricing"]["prompt"]
    return price


async def test_a_call_has_the_prices_of_its_admission(
    scripted: ScriptedGateway, clock: MovingClock
) -> None:
    """The change happens during a call: this call has the old prices, the next call has the new ones,
    and the catalog shows the present prices."""
    assert await shown_price(scripted) == "0.000001"
    paused = PausedAnswer()
    begun = asyncio.Event()

    async def play(peer: Peer) -> None:
        begun.set()
        await paused.verb()(peer)

    scripted.upstream.play(play)
    asked = asyncio.ensure_future(scripted.chat(stream=True))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    clock.now = CHANGE
    paused.may_end.set()
    before = await scripted.entry_of(await asked)
    assert before.cost == PROMPT * MICRO + COMPLETION * 2 * MICRO
    scripted.upstream.play(chat())
    after = await scripted.entry_of(await scripted.chat())
    assert after.cost == 10 * before.cost
    assert await shown_price(scripted) == "0.00001"


async def test_a_hold_is_made_by_the_dearest_prices(scripted: ScriptedGateway) -> None:
    short = await scripted.entry_of(await scripted.chat(max_tokens=10))
    assert short.hold == short.prompt_tokens_max * MICRO + 10 * 2 * MICRO
    priority = await scripted.entry_of(await scripted.chat(max_tokens=10, service_tier="priority"))
    assert priority.hold == 2 * short.hold
    messages = [{"role": "user", "content": "word " * 200}]
    long = await scripted.entry_of(await scripted.chat(max_tokens=10, messages=messages))
    assert long.prompt_tokens_max > 200
    assert long.hold == long.prompt_tokens_max * 3 * MICRO + 10 * 4 * MICRO
    # The reported prompt is short, so the ordinary prices apply.
    assert long.cost == PROMPT * MICRO + COMPLETION * 2 * MICRO


async def test_each_part_of_a_fan_out_has_its_own_prices(scripted: ScriptedGateway) -> None:
    """Two prompts of 120 tokens are not one prompt of 240. Each answer names its own service tier."""
    usage = {"prompt_tokens": 120, "completion_tokens": 5, "total_tokens": 125}
    plain = completion(usage=usage)
    scripted.upstream.play(answer(plain), answer({**plain, "service_tier": "priority"}))
    entry = await scripted.entry_of(await scripted.chat(n=2))
    one = 120 * MICRO + 5 * 2 * MICRO
    assert entry.cost == one + 2 * one


_NAMED = [chunk(f"{number} ", service_tier="priority") for number in range(2)]


@pytest.mark.parametrize(
    "records",
    [_NAMED, [{"choices": []}, *_NAMED], [chunk("0 "), _NAMED[1]]],
    ids=["first", "after a chunk without choices", "late"],
)
@pytest.mark.parametrize("broken", [False, True], ids=["complete", "broken"])
async def test_a_stream_without_usage_costs_the_tier_that_it_names(
    scripted: ScriptedGateway, records: list[dict[str, Any]], broken: bool
) -> None:
    rest = [] if broken else [sse(chunk(finish="stop")), DONE]
    scripted.upstream.play(stream([*map(sse, records), *rest]))
    answered = await scripted.chat(stream=True, service_tier="priority", max_tokens=10)
    assert (read_stream(answered.text).error is not None) == broken
    entry = await scripted.entry_of(answered)
    assert entry.estimated
    tokens = max(2, estimate_tokens("0 1 "))
    assert entry.cost == 2 * (entry.prompt_tokens * MICRO + tokens * 2 * MICRO)


async def test_a_reservation_keeps_every_price_that_may_apply(scripted: ScriptedGateway) -> None:
    answered = await scripted.chat(max_tokens=10)
    [(price, variants)] = await scripted.sql(
        "SELECT price_prompt, price_variants FROM reservations WHERE id = %s",
        answered.headers["x-request-id"],
    )
    assert price == MICRO
    kept = {(one["service_tier"], one["from_tokens"]): one["prompt"] for one in variants}
    assert kept == {
        (None, 0): "1000000",
        (None, 201): "3000000",
        ("priority", 0): "2000000",
        ("priority", 201): "6000000",
    }


async def test_a_service_tier_needs_its_option(data_dir: Path, conninfo: str) -> None:
    """A client cannot ask for a service tier if the model's options do not map it."""
    async with answering_gateway(data_dir, conninfo) as running:
        refused = await running.chat(service_tier="priority")
        assert_error(refused, 501, "not_implemented", "service_tier")


async def test_the_hold_of_a_call_whose_provider_chooses_the_tier(
    data_dir: Path, conninfo: str
) -> None:
    """In the Messages protocol, `auto` lets the provider choose the tier, like a request without it."""
    async with answering_gateway(
        data_dir,
        conninfo,
        extensions={"messages": True},
        model={"service_tiers": {"priority": "2"}, "options": {"service_tier": "service_tier"}},
    ) as scripted:
        body = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}
        holds = []
        for fields in ({}, {"service_tier": "auto"}):
            scripted.upstream.play(answer({**completion(), "service_tier": "priority"}))
            found = await scripted.gateway.client.post(
                "/v1/messages", json={**body, **fields}, headers=scripted.tenant.as_customer
            )
            assert found.status_code == 200, found.text
            entry = await scripted.entry_of(found)
            assert entry.overage == 0
            holds.append(entry.hold)
        assert holds[0] == holds[1]


async def test_the_most_that_a_call_with_audio_can_cost(data_dir: Path, conninfo: str) -> None:
    """The recording has more tokens than the settings declare, but not more than the context."""
    usage = {
        "prompt_tokens": 4000,
        "completion_tokens": 3,
        "total_tokens": 4003,
        "prompt_tokens_details": {"audio_tokens": 3900},
    }
    audio = {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}
    async with answering_gateway(
        data_dir,
        conninfo,
        model={
            "pricing": {**tier("0.000001", "0.000002"), "input_audio": "0.00004"},
            "input_modalities": ["text", "audio"],
            "token_bounds": {"audio": 100, "unbounded": True},
        },
    ) as scripted:
        scripted.upstream.play(answer(completion(usage=usage)))
        found = await scripted.chat(messages=[{"role": "user", "content": [audio]}])
        assert found.status_code == 200, found.text
        [(overage_max,)] = await scripted.sql(
            "SELECT overage_max FROM reservations WHERE id = %s", found.headers["x-request-id"]
        )
        assert 0 < (await scripted.entry_of(found)).overage <= overage_max
