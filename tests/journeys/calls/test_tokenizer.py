"""A backend's tokenizer: its count bounds the prompt, media come on top, and it works for nobody who
could not be admitted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import PROMPT_PRICE, ScriptedGateway, scripted_gateway
from tests.support.upstream import Peer, Upstream, answer, chat

COUNT = 11
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


async def _counting(peer: Peer) -> None:
    """A server with a tokenizer."""
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
    """With credit for the text alone, not one call with an image passes."""
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


async def test_no_tokenizer_works_for_a_caller_over_its_rate(scripted: ScriptedGateway) -> None:
    slow = await scripted.with_tenant()
    services = scripted.gateway.services
    await services.billing.limit_set(
        slow.tenant.project_id, requests_per_minute=1, concurrency=None
    )
    assert (await slow.chat()).status_code == 200
    before = _counts(scripted)
    assert_error(await slow.chat(), 429, "rate_limit_exceeded")
    assert _counts(scripted) == before


async def test_credit_that_waits_to_be_folded_in_is_credit(scripted: ScriptedGateway) -> None:
    """What a settlement gave back counts before the next transaction takes it into the account."""
    entry = await scripted.entry_of(await scripted.chat(max_tokens=1000))
    exact = await scripted.with_tenant(credit=entry.hold)
    for _ in range(2):
        found = await exact.chat(max_tokens=900)
        assert found.status_code == 200, found.text
