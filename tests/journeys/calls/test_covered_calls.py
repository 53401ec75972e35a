"""Tests that credit which covers the holds of calls is enough to admit them, however large the context
and the longest output of their model are."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.upstream import Peer, Upstream, Verb, answer, completion

USD = 10**12
CALLS = 20
OUTPUT_TOKENS = 50
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


def priced(
    upstream_model: str, context: int, output: int, prompt: str, completion: str
) -> dict[str, Any]:
    """Returns a model as its provider publishes it. The prices are in USD per token."""
    return {
        "upstream_model": upstream_model,
        "context_length": context,
        "max_output_length": output,
        "pricing": {"prompt": prompt, "completion": completion},
    }


MODELS = [
    priced("gpt-5-pro", 400_000, 272_000, "0.000015", "0.00012"),
    priced("o1-pro", 200_000, 100_000, "0.00015", "0.0006"),
    priced("claude-sonnet-4-6", 1_000_000, 128_000, "0.000003", "0.000015"),
    priced("claude-opus-4-6", 200_000, 32_000, "0.000005", "0.000025"),
]


def all_at_once(requests: int) -> Verb:
    """Answers no request before so many have arrived."""
    arrived, complete = 0, asyncio.Event()

    async def play(peer: Peer) -> None:
        nonlocal arrived
        arrived += 1
        if arrived >= requests:
            complete.set()
        await asyncio.wait_for(complete.wait(), timeout=20)
        await answer(completion(usage=USAGE))(peer)

    return play


async def charged(scripted: ScriptedGateway, calls: int) -> None:
    """Checks that the ledger is right, and that so many calls cost what the upstream reported."""
    balance = await scripted.balance()
    entries = await scripted.entries()
    assert [entry.status for entry in entries] == ["settled"] * calls
    assert (balance["held"], balance["unsettled"]) == (0, 0)
    assert balance["settled"] == sum(entry.cost for entry in entries)
    assert all(0 < entry.cost < entry.hold for entry in entries)
    assert all(entry.overage == 0 for entry in entries)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["upstream_model"])
async def test_ten_dollars_admit_twenty_calls_of_three_cents(
    data_dir: Path, conninfo: str, model: dict[str, Any]
) -> None:
    """The hold of a call is at most 0.06 USD; a call with full context and longest output would cost up
    to 90 USD."""
    async with (
        Upstream(all_at_once(CALLS)) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, credit=10 * USD, model=model) as scripted,
    ):
        calls = [scripted.chat(max_tokens=OUTPUT_TOKENS) for _ in range(CALLS)]
        answers = await asyncio.gather(*calls)
        assert [(found.status_code, found.text[:200]) for found in answers if found.is_error] == []
        await charged(scripted, CALLS)


async def test_sixteen_completions_by_fan_out_need_only_their_hold(
    data_dir: Path, conninfo: str
) -> None:
    """Each completion is a call of its own to this backend, so its prompt is sent sixteen times."""
    async with (
        Upstream(all_at_once(16)) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            credit=49 * USD,
            backend={"native_n": False},
            model=priced("claude-sonnet-4-6", 1_000_000, 128_000, "0.000003", "0.000015"),
        ) as scripted,
    ):
        found = await scripted.chat(max_tokens=OUTPUT_TOKENS, n=16)
        assert found.status_code == 200, found.text
        assert len(found.json()["choices"]) == 16
        await charged(scripted, 1)


async def test_calls_beyond_the_credit_are_refused(data_dir: Path, conninfo: str) -> None:
    """With this credit, exactly seven of the holds fit, and the eighth call is refused because of the
    credit and not because of the bound."""
    async with (
        Upstream(all_at_once(7)) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, credit=10 * USD, model=MODELS[0]
        ) as scripted,
    ):
        upstream.play(all_at_once(1))
        assert (await scripted.chat(max_tokens=OUTPUT_TOKENS)).status_code == 200
        [entry] = await scripted.entries()
        another = await scripted.with_tenant(credit=8 * entry.hold - 1)
        upstream.play(all_at_once(7))
        calls = [another.chat(max_tokens=OUTPUT_TOKENS) for _ in range(8)]
        answers = await asyncio.gather(*calls)
        assert sorted(found.status_code for found in answers) == [200] * 7 + [402]
        [refused] = [found for found in answers if found.status_code == 402]
        assert "credit cannot cover this call" in refused.json()["error"]["message"]
        assert refused.headers["Retry-After"] == "1"
        await charged(another, 7)
