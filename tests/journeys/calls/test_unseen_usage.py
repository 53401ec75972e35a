"""Tests calls without a usage report: hidden reasoning and media are not charged by the visible text."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paused_answer import PausedAnswer
from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import (
    COST,
    MODEL,
    PROMPT_PRICE,
    Entry,
    ScriptedGateway,
    answering_gateway,
    eventually,
    read_stream,
)
from tests.support.upstream import USAGE, answer, completion, end_after, reset_after, sse, stream
from tests.support.upstream import chunk as piece

OUTPUT_BOUND = 1024
REASONING, PLAIN, SEARCHING = MODEL, "example/plain", "example/searching"
CONTEXT = 4096


@pytest.fixture(scope="module")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    features = {"supported_features": ["tools"]}
    searching = {"upstream_model": "sonar-pro", "pricing": {"prompt": "0.0000002"}}
    async with answering_gateway(
        data_dir,
        conninfo,
        limits={"inference_deadline_s": 1},
        drain_s=0.2,
        model={"supported_features": ["reasoning"], "input_modalities": ["text", "image", "file"]},
        more_models=[{"id": PLAIN, **features}, {"id": SEARCHING, **features, **searching}],
    ) as running:
        yield running


async def only_entry(scripted: ScriptedGateway) -> Entry:
    await eventually(lambda: scripted.gateway.services.inference.running == 0)
    await scripted.balance()
    (entry,) = await scripted.entries()
    return entry


def assert_charged_by_the_bound(entry: Entry) -> None:
    """Checks that the charge is the gateway's count of the prompt and the whole output of the hold."""
    assert (entry.status, entry.estimated, entry.overage) == ("settled", True, 0)
    assert entry.cost == entry.delivered(OUTPUT_BOUND) < entry.hold


async def test_a_client_that_leaves_after_the_answer_pays_for_hidden_reasoning(
    scripted: ScriptedGateway,
) -> None:
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb())
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=True)
        await caller.head()
        for _ in range(2):
            await caller.record()
        caller.leave(abruptly=True)
        assert_charged_by_the_bound(await only_entry(scripted))


async def test_a_deadline_after_output(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(PausedAnswer().verb())
    found = await scripted.chat(stream=True)
    assert read_stream(found.text).error is not None
    assert_charged_by_the_bound(await scripted.entry_of(found))


@pytest.mark.parametrize("verb", [reset_after(2), end_after(2)], ids=["reset", "end"])
async def test_a_stream_that_breaks(scripted: ScriptedGateway, verb: Any) -> None:
    scripted.upstream.play(verb)
    found = await scripted.chat(stream=True)
    assert_charged_by_the_bound(await scripted.entry_of(found))


async def test_a_complete_answer_without_usage(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(answer(completion("Hello", usage=None)))
    assert_charged_by_the_bound(await scripted.entry_of(await scripted.chat()))


async def test_reasoning_that_is_seen_counts_like_reasoning_that_is_declared(
    scripted: ScriptedGateway,
) -> None:
    records = (sse(piece(delta={"reasoning_content": "Hm."})), sse(piece("Hello")))
    scripted.upstream.play(stream(records))
    found = await scripted.chat(model=PLAIN, stream=True)
    assert_charged_by_the_bound(await scripted.entry_of(found))


async def test_output_without_reasoning_is_charged_as_far_as_it_came(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(reset_after(2))
    entry = await scripted.entry_of(await scripted.chat(model=PLAIN, stream=True))
    assert (entry.status, entry.cost) == ("settled", entry.delivered_pieces(2))


PDF = {
    "type": "file",
    "file": {
        "file_data": "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.4\n").decode()
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}


@pytest.mark.parametrize("media", [PDF, IMAGE], ids=["file", "image"])
async def test_media_whose_size_nobody_counted_end_unsettled(
    scripted: ScriptedGateway, media: dict[str, Any]
) -> None:
    """Only the context length limits the size of such media, and a limit is not a count."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "Sum up."}, media]}]
    scripted.upstream.play(answer(completion("Hello", usage=None)))
    found = await scripted.chat(messages=messages)
    assert found.status_code == 200
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("unsettled", 0)
    assert entry.reason is not None
    assert "size of media" in entry.reason
    # A usage report contains the count.
    scripted.upstream.play(answer(completion("Hello", usage=USAGE)))
    entry = await scripted.entry_of(await scripted.chat(messages=messages))
    assert (entry.status, entry.cost) == ("settled", COST)


async def test_a_model_that_searches_on_its_own_is_held_for_its_searches(
    scripted: ScriptedGateway,
) -> None:
    report = {**USAGE, "prompt_tokens": 4000, "num_search_queries": 9}
    scripted.upstream.play(answer(completion("Hello", usage=report)))
    entry = await scripted.entry_of(await scripted.chat(model=SEARCHING))
    assert (entry.status, entry.prompt_tokens_max, entry.overage) == ("settled", CONTEXT, 0)
    assert entry.cost == 4000 * PROMPT_PRICE
    assert entry.hold == CONTEXT * PROMPT_PRICE
    scripted.upstream.play(answer(completion("Hello", usage=None)))
    entry = await scripted.entry_of(await scripted.chat(model=SEARCHING))
    assert entry.status == "unsettled"
