"""Tests how failed answers are charged if the provider's preset has a billing rule, and if it has none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    COST,
    PROMPT_PRICE,
    Entry,
    ScriptedGateway,
    answering_gateway,
    read_stream,
)
from tests.support.tables import each
from tests.support.upstream import (
    DONE,
    Peer,
    Verb,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)

FAILED = {"code": 502, "message": "Provider disconnected"}
TIMED_OUT = {"code": 504, "message": "Provider timed out"}
PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0xLjQK"}}
RUNNING = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
RUNNING_COST = 7 * PROMPT_PRICE + 2 * COMPLETION_PRICE


@pytest.fixture(scope="module")
async def gateways(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, ScriptedGateway]]:
    """Yields gateways by the preset of their backend. The empty name means no preset."""
    found = {}
    model = {
        "supported_features": ["tools", "web_search"],
        "input_modalities": ["text", "file"],
        "token_bounds": {"file": 100, "web_search": 10},
    }
    async with AsyncExitStack() as stack:
        for preset in ("", "openrouter", "vllm"):
            backend = {"preset": preset, "api_key_env": "", "tokenize_path": "none"}
            running = answering_gateway(data_dir, conninfo, model=model, backend=backend)
            found[preset] = await stack.enter_async_context(running)
        yield found


def ends_with(finish: str | None, error: dict[str, Any] | None, **fields: Any) -> Verb:
    """Returns a stream whose last record ends the choice, has an error, or both."""
    last = chunk(finish=finish, **fields)
    last |= {} if error is None else {"error": error}
    return stream([sse(chunk("Hello")), sse(last), DONE])


def cut_after(*records: dict[str, Any]) -> Verb:
    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type="text/event-stream")
        for record in records:
            await peer.send_chunk(sse(record))
        # A reset discards data that the gateway has not read, so give it time to read.
        await asyncio.sleep(0.05)
        peer.reset()

    return verb


async def ask(
    scripted: ScriptedGateway, verb: Verb, **fields: Any
) -> tuple[httpx2.Response, Entry]:
    scripted.upstream.play(verb)
    found = await scripted.chat(**{"stream": True, **fields})
    return found, await scripted.entry_of(found)


@pytest.mark.parametrize("streamed", [False, True])
async def test_cached_tokens_beside_the_prompt(
    data_dir: Path, conninfo: str, streamed: bool
) -> None:
    """A report of Grok at Azure does not show that its cached tokens are not inside the prompt."""
    usage = {**RUNNING, "prompt_tokens_details": {"cached_tokens": 5}}
    whole = stream(chat_records(usage=usage)) if streamed else answer(completion(usage=usage))
    backend = {"preset": "azure", "api_key_env": "", "cache_adds_to_prompt": True}
    async with answering_gateway(data_dir, conninfo, backend=backend) as scripted:
        found, entry = await ask(scripted, whole, stream=streamed)
        assert found.status_code == 200, found.text
        # Without a price for cached tokens, they cost as much as others.
        assert (entry.cost, entry.estimated) == (RUNNING_COST + 5 * PROMPT_PRICE, False)


@each("error", [FAILED, None], ids=["error", "no error"])
async def test_openrouter_bills_nothing_for_the_finish_reason_error(
    gateways: dict[str, ScriptedGateway], error: dict[str, Any] | None
) -> None:
    found, entry = await ask(gateways["openrouter"], ends_with("error", error))
    said = read_stream(found.text)
    assert (said.text, said.error is not None) == ("Hello", True)
    assert (entry.status, entry.cost) == ("released", 0)


async def test_a_timeout_before_output_is_free_at_openrouter_only(
    gateways: dict[str, ScriptedGateway],
) -> None:
    last = {**chunk(finish="error"), "error": TIMED_OUT}
    for preset, status in (("openrouter", "released"), ("", "unsettled")):
        found, entry = await ask(gateways[preset], stream([sse(last), DONE]))
        assert (found.status_code, entry.status) == (502, status)
        assert ("x-should-retry" in found.headers) == (status == "unsettled")


async def test_an_answer_in_json_with_the_finish_reason_error_is_free(
    gateways: dict[str, ScriptedGateway],
) -> None:
    body = completion("Hello", usage=None)
    body["choices"][0] |= {"finish_reason": "error", "error": FAILED}
    found, entry = await ask(gateways["openrouter"], answer(body), stream=False)
    assert (found.status_code, entry.status) == (502, "released")


@each("preset", ["", "vllm"], ids=["no preset", "another preset"])
async def test_another_provider_is_charged_for_the_finish_reason_error(
    gateways: dict[str, ScriptedGateway], preset: str
) -> None:
    _, entry = await ask(gateways[preset], ends_with("error", FAILED))
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(1, "Hello")


async def test_another_finish_reason_is_charged_at_openrouter(
    gateways: dict[str, ScriptedGateway],
) -> None:
    _, entry = await ask(gateways["openrouter"], ends_with(None, FAILED))
    assert (entry.status, entry.estimated) == ("settled", True)


async def test_a_stated_price_is_charged_at_openrouter(
    gateways: dict[str, ScriptedGateway],
) -> None:
    """OpenRouter's own statement counts more than its general rule."""
    for price, status in ((0.0000042, "settled"), (0, "released")):
        usage = {**RUNNING, "cost": price}
        later = [sse(chunk("Hello")), sse(chunk(finish="error")), sse(usage_chunk(usage)), DONE]
        for verb in (ends_with("error", FAILED, usage=usage), stream(later)):
            _, entry = await ask(gateways["openrouter"], verb)
            assert (entry.status, entry.cost) == (status, RUNNING_COST if price else 0)


async def test_an_operators_own_key_is_charged_at_openrouter(
    gateways: dict[str, ScriptedGateway],
) -> None:
    """The model's provider bills the tokens, and OpenRouter does not know its price."""
    usage = {**RUNNING, "cost": 0, "is_byok": True}
    _, entry = await ask(gateways["openrouter"], ends_with("error", FAILED, usage=usage))
    assert (entry.status, entry.cost) == ("settled", RUNNING_COST)


async def test_one_of_several_choices_does_not_make_the_answer_free(
    data_dir: Path, conninfo: str
) -> None:
    backend = {"preset": "openrouter", "api_key_env": "", "tokenize_path": "none"}
    async with answering_gateway(
        data_dir, conninfo, backend={**backend, "native_n": True}
    ) as scripted:
        records = [chunk("Hello"), chunk(finish="stop"), chunk(index=1, finish="error")]
        verb = stream([*map(sse, records), sse(usage_chunk(RUNNING)), DONE])
        _, entry = await ask(scripted, verb, n=2)
    assert (entry.status, entry.cost) == ("settled", RUNNING_COST)


@each(
    "fields",
    [{"messages": [{"role": "user", "content": [PDF]}]}, {"web_search_options": {}}],
    ids=["a file", "a search"],
)
async def test_openrouter_may_bill_fees_for_a_failed_answer(
    gateways: dict[str, ScriptedGateway], fields: dict[str, Any]
) -> None:
    _, entry = await ask(gateways["openrouter"], ends_with("error", FAILED), **fields)
    assert entry.status == "unsettled"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_free_completion_of_separate_calls_leaves_the_others_exact(
    gateways: dict[str, ScriptedGateway], streamed: bool
) -> None:
    scripted = gateways["openrouter"]
    failed = completion("Hello", usage=None)
    failed["choices"][0] |= {"finish_reason": "error", "error": FAILED}
    free = ends_with("error", FAILED) if streamed else answer(failed)
    for script, status, cost in (
        ((free, chat(), chat()), "settled", 2 * COST),
        ((chat(), free, chat()), "settled", 2 * COST),
        ((free, free, free), "released", 0),
    ):
        scripted.upstream.play(*script)
        found = await scripted.chat(stream=streamed, n=3)
        entry = await scripted.entry_of(found)
        assert (entry.status, entry.cost, entry.estimated) == (status, cost, False)


async def test_a_free_completion_of_separate_calls_may_have_fees(
    gateways: dict[str, ScriptedGateway],
) -> None:
    """One completion may have searched, and the report of another one states a price."""
    fields: dict[str, Any] = {"n": 2, "stream": True}
    scripted = gateways["openrouter"]
    scripted.upstream.play(ends_with("error", FAILED), chat())
    found = await scripted.chat(**fields, web_search_options={})
    assert (await scripted.entry_of(found)).status == "unsettled"
    usage = {**RUNNING, "cost": 0.0000042}
    scripted.upstream.play(ends_with("error", FAILED, usage=usage), chat())
    entry = await scripted.entry_of(await scripted.chat(**fields))
    assert (entry.status, entry.cost, entry.estimated) == ("settled", RUNNING_COST + COST, False)


@each(("preset", "estimated"), [("", True), ("openrouter", True), ("vllm", False)])
async def test_a_running_total_is_an_estimate_if_the_stream_breaks_off(
    gateways: dict[str, ScriptedGateway], preset: str, estimated: bool
) -> None:
    """vLLM is the operator's own server, and its running totals are the bill."""
    _, entry = await ask(gateways[preset], cut_after(chunk("Hello", usage=RUNNING)))
    expected = ("settled", RUNNING_COST, estimated)
    assert (entry.status, entry.cost, entry.estimated) == expected


async def test_the_last_report_is_exact_even_if_the_end_of_the_stream_is_missing(
    gateways: dict[str, ScriptedGateway],
) -> None:
    end = chunk(finish="stop", usage=RUNNING)
    early = {**RUNNING, "completion_tokens": 1, "total_tokens": 8}
    for verb in (
        cut_after(chunk("Hello", usage=early), end),
        stream([sse(chunk("Hello", usage=RUNNING))]),
    ):
        _, entry = await ask(gateways[""], verb)
        assert (entry.status, entry.cost, entry.estimated) == ("settled", RUNNING_COST, False)
