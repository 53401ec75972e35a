"""Tests usage as real providers report it: running totals, unusual fields, zeros, or no report."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    COST,
    PROMPT_PRICE,
    ScriptedGateway,
    read_stream,
)
from tests.support.upstream import DONE, USAGE, answer, chat_records, chunk, completion, sse, stream
from tollkeeper.core.estimate import estimate_tokens

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])


@pytest.fixture
async def scripted(scripted: ScriptedGateway) -> AsyncIterator[ScriptedGateway]:
    """Checks after each test that no task, socket or file of its calls is left."""
    async with scripted.leaving_nothing():
        yield scripted


def report(prompt: int, written: int, **details: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        **details,
    }


async def ask(scripted: ScriptedGateway, usage: Any, *, streamed: bool) -> httpx2.Response:
    """Makes a call whose answer is complete and has this usage."""
    whole = stream(chat_records(usage=usage)) if streamed else answer(completion(usage=usage))
    scripted.upstream.play(whole)
    found = await scripted.chat(stream=streamed)
    assert found.status_code == 200, found.text
    return found


async def test_a_running_total_in_every_chunk(scripted: ScriptedGateway) -> None:
    """The last total is charged. The first total counts zero completion tokens."""
    pieces = [sse(chunk(f"{number} ", usage=report(7, number))) for number in range(101)]
    end = sse(chunk(finish="stop", usage=report(7, 100)))
    scripted.upstream.play(stream([*pieces, end, DONE]))
    entry = await scripted.entry_of(await scripted.chat(stream=True))
    cost = 7 * PROMPT_PRICE + 100 * COMPLETION_PRICE
    assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, False)


@BOTH
async def test_no_completion_though_text_came(scripted: ScriptedGateway, streamed: bool) -> None:
    found = await ask(scripted, report(7, 0), streamed=streamed)
    entry = await scripted.entry_of(found)
    tokens = max(2 if streamed else 1, estimate_tokens("Hello"))
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == 7 * PROMPT_PRICE + tokens * COMPLETION_PRICE


@pytest.mark.parametrize("completion_tokens", [37, 0])
async def test_a_filtered_choice_without_a_message(
    scripted: ScriptedGateway, completion_tokens: int
) -> None:
    body = completion(usage=report(14, completion_tokens))
    body["choices"] = [{"index": 0, "finish_reason": "content_filter"}]
    scripted.upstream.play(answer(body))
    found = await scripted.chat()
    assert found.status_code == 200, found.text
    [choice] = found.json()["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"] == {"role": "assistant", "content": None}
    entry = await scripted.entry_of(found)
    cost = 14 * PROMPT_PRICE + completion_tokens * COMPLETION_PRICE
    assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, False)


@BOTH
@pytest.mark.parametrize("text", ["one two three four five", "7" * 3000])
async def test_our_own_count_errs_high(
    scripted: ScriptedGateway, text: str, streamed: bool
) -> None:
    body = completion(usage=None)
    body["choices"][0]["message"]["content"] = text
    records = [sse(chunk(text[at : at + 30])) for at in range(0, len(text), 30)]
    whole = stream([*records, sse(chunk(finish="stop")), DONE])
    scripted.upstream.play(whole if streamed else answer(body))
    entry = await scripted.entry_of(await scripted.chat(stream=streamed, max_tokens=2048))
    tokens = min(2048, max(len(records) if streamed else 1, estimate_tokens(text)))
    assert tokens >= min(2048, 5 if " " in text else 3000)
    assert (entry.estimated, entry.cost) == (True, entry.delivered(tokens))


@pytest.mark.parametrize("place", ["x_groq", "choice"])
async def test_reports_in_odd_places(scripted: ScriptedGateway, place: str) -> None:
    end = chunk(finish="stop")
    if place == "x_groq":
        end["x_groq"] = {"id": "req", "usage": USAGE}
    else:
        end["choices"][0]["usage"] = USAGE
    scripted.upstream.play(stream([sse(chunk("Hello")), sse(end), DONE]))
    entry = await scripted.entry_of(await scripted.chat(stream=True))
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


async def test_usage_beside_an_error_in_the_middle(scripted: ScriptedGateway) -> None:
    broken = {**chunk(finish="error", usage=report(7, 40)), "error": {"code": 502, "message": "x"}}
    scripted.upstream.play(stream([sse(chunk("Hello")), sse(broken), DONE]))
    found = await scripted.chat(stream=True)
    assert read_stream(found.text).error is not None
    entry = await scripted.entry_of(found)
    cost = 7 * PROMPT_PRICE + 40 * COMPLETION_PRICE
    assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, False)


async def test_what_was_reported_is_shown_beside_what_was_charged(
    scripted: ScriptedGateway,
) -> None:
    usage = report(7, 3, cost=0.0000042, prompt_tokens_details={"cached_tokens": 2})
    found = await ask(scripted, usage, streamed=False)
    await scripted.entry_of(found)
    activity = await scripted.activity_of(found)
    assert activity.reported_usage == usage
    assert activity.reported_cost_picousd == 4_200_000
    assert activity.usage is not None
    assert (activity.usage.prompt_tokens, activity.usage.cached_tokens) == (7, 2)
