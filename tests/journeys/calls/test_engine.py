"""Tests calls with the OpenAI SDK as client and the real engine as backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pydantic
import pytest

from tests.support.engine import engine_gateway
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.sdks import openai
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.engine]
MODEL = PACKAGED_MODEL.id
# In picousd per token.
PROMPT_PRICE, COMPLETION_PRICE = 20_000, 80_000
ASKED: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a colour. Grüße, 世界!"},
]


class Verdict(pydantic.BaseModel):
    yes: bool


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with engine_gateway(
        data_dir,
        conninfo,
        id=MODEL,
        max_output_length=512,
        supported_sampling_parameters=PACKAGED_MODEL.supported_sampling_parameters,
        supported_features=PACKAGED_MODEL.supported_features,
        pricing={"prompt": "0.00000002", "completion": "0.00000008"},
    ) as made:
        yield made


@pytest.fixture
async def client(scripted: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{scripted.gateway.base_url}/v1",
        api_key=scripted.tenant.project_key,
        max_retries=0,
    ) as made:
        yield made


async def test_the_prompt_is_held_to_the_token(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    found = await client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=4, temperature=0
    )
    assert found.model == MODEL
    assert found.choices[0].message.content
    assert found.choices[0].finish_reason in ("stop", "length")
    usage = found.usage
    assert usage is not None
    assert found._request_id is not None
    entry = await scripted.entry(found._request_id)
    assert entry is not None
    assert entry.prompt_tokens_max == usage.prompt_tokens
    assert entry.hold == usage.prompt_tokens * PROMPT_PRICE + 4 * COMPLETION_PRICE
    # Cached tokens have no separate price here, so they cost as much as other prompt tokens.
    paid = usage.prompt_tokens * PROMPT_PRICE
    assert entry.cost == paid + usage.completion_tokens * COMPLETION_PRICE
    assert not entry.estimated
    await scripted.balance()


@pytest.mark.smoke
async def test_a_stream_says_the_same(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=6, temperature=0, seed=1
    )
    records = await client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        max_tokens=6,
        temperature=0,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [record async for record in records]
    text = "".join(choice.delta.content or "" for found in chunks for choice in found.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_logprobs_of_every_token(client: openai.AsyncOpenAI) -> None:
    found = await client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs, usage = found.choices[0].logprobs, found.usage
    assert logprobs is not None
    assert logprobs.content is not None
    assert usage is not None
    assert 1 <= len(logprobs.content) <= usage.completion_tokens
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in logprobs.content)


async def test_a_schema_is_kept_to(client: openai.AsyncOpenAI) -> None:
    found = await client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Is water wet? Answer in JSON."}],
        max_tokens=40,
        temperature=0,
        response_format=Verdict,
    )
    assert isinstance(found.choices[0].message.parsed, Verdict)


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_several_choices_at_once(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI, streamed: bool
) -> None:
    before = len(await scripted.entries())
    if streamed:
        records = await client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=3, n=3, seed=5, stream=True
        )
        indices = {choice.index async for record in records for choice in record.choices}
        assert indices == {0, 1, 2}
    else:
        found = await client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=3, n=3, seed=5
        )
        assert [choice.index for choice in found.choices] == [0, 1, 2]
        assert found.usage is not None
        assert found.usage.completion_tokens <= 9
    entries = await scripted.entries()
    assert len(entries) == before + 1
    assert (await scripted.balance())["held"] == 0
