"""Tests a backend's tokenizer: its count limits the prompt, media are added to the count, and it is not
asked for calls that cannot be admitted."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.paused_answer import PausedAnswer
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    PROMPT_PRICE,
    ScriptedGateway,
    chat_body,
    eventually,
    scripted_gateway,
)
from tests.support.token_counts import count
from tests.support.upstream import Peer, Upstream, answer, chat, hang, reset_after
from tollkeeper.core.estimate import estimate_tokens
from tollkeeper.core.money import picousd_from_usd

COUNT = 11
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


async def _counting(peer: Peer) -> None:
    """Plays a server with a tokenizer."""
    is_count = peer.request.path.endswith("/tokenize")
    await (answer({"count": COUNT}) if is_count else chat())(peer)


@pytest.fixture
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with (
        Upstream(_counting) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend={"tokenize_path": "/tokenize"},
            model={"input_modalities": ["text", "image"], "context_length": 100_000},
        ) as running,
    ):
        yield running


def _counts(scripted: ScriptedGateway) -> int:
    return sum(request.path.endswith("/tokenize") for request in scripted.upstream.requests)


async def test_the_count_bounds_the_prompt(scripted: ScriptedGateway) -> None:
    entry = await scripted.entry_of(await scripted.chat())
    assert entry.prompt_tokens_max == COUNT
    assert _counts(scripted) == 1


async def test_images_come_on_top_of_the_count(scripted: ScriptedGateway) -> None:
    """A tenant with credit for the text alone cannot make a call with an image."""
    messages = [{"role": "user", "content": [IMAGE]}]
    entry = await scripted.entry_of(await scripted.chat(messages=messages))
    assert entry.prompt_tokens_max == COUNT + 48_169
    poor = await scripted.with_tenant(credit=10**10)
    assert 48_169 * PROMPT_PRICE + 10**9 > 10**10
    assert_error(await poor.chat(messages=messages), 402, "payment_required")
    assert (await poor.balance())["settled"] == 0


@pytest.mark.parametrize("fields", [{}, {"truncation": "auto", "input": "word " * 30_000}])
async def test_no_tokenizer_works_for_a_caller_without_credit(
    scripted: ScriptedGateway, fields: dict[str, Any]
) -> None:
    poor = await scripted.with_tenant(credit=0)
    refused = await (respond(poor, **fields) if fields else poor.chat())
    assert_error(refused, 402, "payment_required")
    assert _counts(scripted) == 0


async def test_a_refusal_without_a_count_names_the_whole_hold(scripted: ScriptedGateway) -> None:
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1000))
    output = entry.hold - COUNT * PROMPT_PRICE
    poor = await scripted.with_tenant(credit=0)
    needed = _amounts(await poor.chat(max_tokens=1000))["needed"]
    # The estimate of the prompt replaces the count, and is rather too high.
    prompt_tokens, rest = divmod(needed - output, PROMPT_PRICE)
    assert (prompt_tokens >= COUNT, rest) == (True, 0)
    # A credit of this amount is enough.
    await poor.grant(needed)
    assert (await poor.chat(max_tokens=1000)).status_code == 200
    settled = (await poor.balance())["settled"]
    assert _amounts(await poor.chat(max_tokens=2000))["spent"] == settled > 0


async def test_a_refusal_without_a_count_says_that_running_calls_hold_the_rest(
    scripted: ScriptedGateway,
) -> None:
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1000))
    poor = await scripted.with_tenant(credit=entry.hold)
    paused = PausedAnswer()
    scripted.upstream.play(answer({"count": COUNT}), paused.verb())
    async with poor.gateway.client.stream(
        "POST",
        "/v1/chat/completions",
        json=chat_body(max_tokens=1000, stream=True),
        headers=poor.tenant.as_customer,
    ) as running:
        assert running.status_code == 200
        refused = await poor.chat(max_tokens=900)
        paused.may_end.set()
        await running.aread()
    assert (_amounts(refused)["held"], refused.headers["retry-after"]) == (entry.hold, "1")


def _amounts(refused: httpx2.Response) -> dict[str, int]:
    """Returns the amounts in the message of a 402."""
    assert_error(refused, 402, "payment_required")
    found = re.findall(
        r"(needed|available|held|spent) (-?[0-9.]+)", refused.json()["error"]["message"]
    )
    return {word: picousd_from_usd(amount.rstrip(".")) for word, amount in found}


async def test_no_tokenizer_works_for_a_caller_over_its_rate(scripted: ScriptedGateway) -> None:
    slow = await scripted.with_tenant()
    services = scripted.gateway.services
    await services.accounts.limit_set(
        slow.tenant.project_id, requests_per_minute=1, concurrency=None
    )
    assert (await slow.chat()).status_code == 200
    before = _counts(scripted)
    assert_error(await slow.chat(), 429, "rate_limit_exceeded")
    assert _counts(scripted) == before


async def test_credit_that_waits_to_be_folded_in_is_credit(scripted: ScriptedGateway) -> None:
    """The unspent part of a resolved hold counts as credit before it is folded into the account."""
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1000))
    exact = await scripted.with_tenant(credit=entry.hold)
    for _ in range(2):
        found = await exact.chat(max_tokens=900)
        assert found.status_code == 200, found.text


async def test_the_process_does_not_work_on_a_call_that_waits_for_its_count(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(hang())
    gate = scripted.gateway.services.inference.overload
    async with scripted.another_client() as client:
        call = asyncio.create_task(client.chat())
        await eventually(lambda: scripted.upstream.under_way == 1)
        assert (scripted.gateway.services.inference.running, gate.active_calls) == (1, 0)
        call.cancel()
        await asyncio.wait([call])


@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_a_stream_that_is_cut_costs_what_a_client_counts(
    scripted: ScriptedGateway, data_dir: Path, conninfo: str, has_tokenizer: bool
) -> None:
    """The hold covers what an unknown chat template may add. The charge doesn't: it is the count that the
    token count request returns, from the backend's tokenizer or by estimate."""
    async with AsyncExitStack() as stack:
        if not has_tokenizer:
            running = scripted_gateway(data_dir, conninfo, scripted.upstream)
            scripted = await stack.enter_async_context(running)
        tokenizer, cut = answer({"count": 5}), reset_after(2)
        scripted.upstream.play(*((tokenizer, tokenizer, cut) if has_tokenizer else (cut,)))
        counted = (await count(scripted)).json()["input_tokens"]
        assert (counted == 5) == has_tokenizer
        entry = await scripted.entry_of(await scripted.chat(stream=True))
        assert (entry.status, entry.estimated) == ("settled", True)
        output = max(2, estimate_tokens("0 1 ")) * COMPLETION_PRICE
        assert entry.cost == counted * PROMPT_PRICE + output
        assert has_tokenizer or counted < entry.prompt_tokens_max
