"""Tests a model whose hold counts one token for each byte of text, so that no text exceeds its hold."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted_gateway import PROMPT_PRICE, ScriptedGateway, answering_gateway
from tests.support.upstream import answer, completion
from tollkeeper.core.estimate import estimate_tokens

# Frequent letters that form no words. The gateway's estimate takes them for words.
_TEXT = "hvuoslrtnh" * 200


@pytest.fixture
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        model={"token_bounds": {"text": "bytes"}, "context_length": 100_000},
    ) as running:
        yield running


async def test_a_token_is_held_for_each_byte(scripted: ScriptedGateway) -> None:
    messages = [{"role": "user", "content": _TEXT}]
    entry = await scripted.entry_of(await scripted.chat(messages=messages))
    # The chat template adds tokens.
    assert len(_TEXT) <= entry.prompt_tokens_max <= len(_TEXT) + 200


async def test_what_nobody_reports_is_charged_by_the_estimate(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(answer({**completion(), "usage": None}))
    messages = [{"role": "user", "content": _TEXT}]
    entry = await scripted.entry_of(await scripted.chat(messages=messages))
    assert entry.estimated
    tokens = estimate_tokens(_TEXT)
    assert tokens * PROMPT_PRICE <= entry.cost < 0.8 * len(_TEXT) * PROMPT_PRICE
