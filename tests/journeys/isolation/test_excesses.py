"""Tests what a tenant whose calls cost more than their holds can do to the calls of other tenants.

A client that knows the tokenizer can write texts with up to twice as many tokens as estimated, and one
that may search can search often. Bob's calls cost at most their holds.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, eventually, model_settings
from tests.support.upstream import Peer, Verb, answer, completion

USD = 10**12
OTHER_MODEL = "example/other"
CALLS = 20


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    changes = {
        "supported_features": ["tools", "web_search"],
        "pricing": {"prompt": "0.0000002", "completion": "0.0000008", "web_search": "0.01"},
        "token_bounds": {"web_search": 10},
    }
    return {
        "model": changes,
        "more_models": [model_settings(**changes, id=OTHER_MODEL)],
        "ledger": {"overage_bound_usd": "0"},
    }


def usage(prompt_tokens: int, searches: int = 0) -> Verb:
    counts = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "total_tokens": prompt_tokens + 1,
        "num_search_queries": searches,
    }
    return answer(completion(usage=counts))


async def hold_of(scripted: ScriptedGateway) -> int:
    """Returns the hold of each of Bob's calls."""
    scripted.upstream.play(usage(9))
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1))
    return entry.hold


async def at_once(bob: ScriptedGateway, **fields: Any) -> Counter[int]:
    """Sends calls of Bob that are all in flight before one of them is answered."""
    released = asyncio.Event()

    async def play(peer: Peer) -> None:
        await released.wait()
        await usage(9)(peer)

    bob.upstream.play(play)
    calls = [asyncio.create_task(bob.chat(max_tokens=1, **fields)) for _ in range(CALLS)]
    try:
        await eventually(
            lambda: bob.upstream.under_way + sum(call.done() for call in calls) == CALLS
        )
    finally:
        released.set()
    answers = await asyncio.gather(*calls)
    for found in answers:
        assert found.status_code == 200 or "overage bound" in found.json()["error"]["message"]
    return Counter(found.status_code for found in answers)


async def test_searches_that_were_allowed_are_no_excess(scripted: ScriptedGateway) -> None:
    """The hold covers ten searches, and Alice's call made thirty. It was known that nobody limits them, so
    this says nothing about calls that search nothing."""
    hold = await hold_of(scripted)
    scripted.upstream.play(usage(9, searches=30))
    found = await scripted.chat(web_search_options={}, max_tokens=1)
    entry = await scripted.entry_of(found)
    assert entry.overage > 10 * hold
    excesses = scripted.gateway.services.excesses
    assert await excesses.overage_models() == []
    bob = await scripted.with_tenant(credit=CALLS * hold, forgets_excesses=False)
    assert await at_once(bob) == {200: CALLS}
    # More searches than any known answer made are news.
    scripted.upstream.play(usage(9, searches=50))
    found = await scripted.chat(web_search_options={}, max_tokens=1)
    assert (await scripted.entry_of(found)).overage > entry.overage
    [case] = await excesses.overage_models()
    assert (case.model, case.hold_picousd) == (MODEL, entry.hold)


async def test_a_text_of_alice_takes_a_share_of_bobs_room(scripted: ScriptedGateway) -> None:
    """Her call cost twice its hold. So Bob's calls may cost twice their holds too: with the bound of zero,
    half of those that his credit covers are admitted at once, and all others one after another."""
    hold = await hold_of(scripted)
    assert hold > COST
    before = [await scripted.with_tenant(credit=CALLS * hold) for _ in range(2)]
    assert await at_once(before[0]) == {200: CALLS}
    scripted.upstream.play(usage(2 * hold // 200_000 - 4))
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1))
    assert entry.hold == hold
    assert 0 < entry.overage <= hold
    rich = await scripted.with_tenant(credit=2 * CALLS * hold, forgets_excesses=False)
    assert await at_once(rich) == {200: CALLS}
    # The other model, and calls beside a bound that covers what is expected, are as before.
    assert await at_once(before[1], model=OTHER_MODEL) == {200: CALLS}
    bounded = await scripted.with_tenant(credit=CALLS * hold, forgets_excesses=False)
    await scripted.gateway.services.accounts.overage_set(
        bounded.tenant.organization_id, CALLS * hold
    )
    assert await at_once(bounded) == {200: CALLS}
    bob = await scripted.with_tenant(credit=CALLS * hold, forgets_excesses=False)
    assert await at_once(bob) == {200: CALLS // 2, 402: CALLS // 2}
    scripted.upstream.play(usage(9))
    assert (await bob.chat(max_tokens=1)).status_code == 200
    for tenant in (rich, bounded, bob):
        assert (await tenant.balance())["held"] == 0
