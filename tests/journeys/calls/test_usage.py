"""Tests which usage is charged: the backend's report if it is plausible, else the gateway's own count."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import REGISTRY

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    COST,
    PROMPT_PRICE,
    ScriptedGateway,
    read_stream,
    scripted_gateway,
)
from tests.support.upstream import (
    DONE,
    USAGE,
    Peer,
    Verb,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    cut,
    hang,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    usage_chunk,
)

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])


@pytest.fixture
async def scripted(scripted: ScriptedGateway) -> AsyncIterator[ScriptedGateway]:
    """Checks after each test that no task, socket or file of its calls is left."""
    async with scripted.leaving_nothing():
        yield scripted


def reporting(usage: Any, *, streamed: bool) -> Verb:
    """Returns a complete answer with this usage, in two pieces if it is streamed."""
    return stream(chat_records(usage=usage)) if streamed else answer(completion(usage=usage))


def usage_of(found: httpx2.Response, *, streamed: bool) -> dict[str, Any]:
    if streamed:
        said = read_stream(found.text)
        assert said.done
        assert said.text == "Hello"
    shown: dict[str, Any] = (said.chunks[-1] if streamed else found.json())["usage"]
    return shown


async def ask(
    scripted: ScriptedGateway, usage: Any, *, streamed: bool, **fields: Any
) -> httpx2.Response:
    scripted.upstream.play(reporting(usage, streamed=streamed))
    if streamed:
        fields["stream_options"] = {"include_usage": True}
    found = await scripted.chat(stream=streamed, **fields)
    assert found.status_code == 200, found.text
    return found


def _absurd_reports() -> float:
    name = "tollkeeper_absurd_usage_reports_total"
    return REGISTRY.get_sample_value(name, {"backend": "scripted"}) or 0.0


def report(prompt: Any, completion: Any, total: Any = None, **details: Any) -> dict[str, Any]:
    total = prompt + completion if total is None else total
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        **details,
    }


# U11: reports without readable counts.
MISSING: dict[str, Any] = {
    "none at all": None,
    "no object": 7,
    "text": "many",
    "an array": [7, 3, 10],
    "empty": {},
    "null": report(None, None, 0),
    "no prompt": {"completion_tokens": 3, "total_tokens": 3},
    "no completion": {"prompt_tokens": 7, "total_tokens": 7},
    "NaN": report(float("nan"), 3, 10),
    "infinite": report(7, float("inf"), 10),
}
# U14: reports that cannot be true.
ABSURD: dict[str, Any] = {
    "negative prompt": report(-1, 3),
    "negative completion": report(7, -3),
    "both negative": report(-7, -3),
    "beyond 64 bits": report(2**63, 3),
    "fractional": report(7.5, 3),
    "written as text": report("7", "3", "10"),
    "flags": report(True, True, 2),
    "a sum below zero": report(7, 3, -10),
    "cached below zero": report(7, 3, prompt_tokens_details={"cached_tokens": -1}),
    "sixteen contexts of prompt": report(16 * 4096 + 1, 3),
    "sixteen contexts of completion": report(7, 16 * 4096 + 1),
}


@BOTH
@pytest.mark.parametrize("row", MISSING)
async def test_usage_that_is_missing_is_counted_by_ourselves(
    scripted: ScriptedGateway, row: str, streamed: bool
) -> None:
    found = await ask(scripted, MISSING[row], streamed=streamed)
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated, entry.overage) == ("settled", True, 0)
    assert entry.cost == entry.delivered_pieces(2 if streamed else 1, "Hello")
    assert 0 < entry.cost <= entry.hold
    assert (await scripted.balance())["settled"] == entry.cost
    shown = usage_of(found, streamed=streamed)
    assert shown["prompt_tokens"] == entry.prompt_tokens


@BOTH
@pytest.mark.parametrize("row", ABSURD)
async def test_usage_that_cannot_be_true_is_for_a_person(
    scripted: ScriptedGateway, row: str, streamed: bool
) -> None:
    absurd = _absurd_reports()
    found = await ask(scripted, ABSURD[row], streamed=streamed)
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.reason) == (
        "unsettled",
        "the backend's report of usage cannot be true",
    )
    assert _absurd_reports() == absurd + 1
    activity = await scripted.activity_of(found)
    assert activity.reported_usage == ABSURD[row]


# Each report with the prompt tokens and completion tokens that are charged for it.
SOUND: dict[str, tuple[dict[str, Any], int, int]] = {
    "U12 less than was held": (USAGE, 7, 3),
    "no total": ({"prompt_tokens": 7, "completion_tokens": 3}, 7, 3),
    "empty details": (report(7, 3, prompt_tokens_details=None, x=1), 7, 3),
    # This model has no price for cached tokens, so they cost as much as other prompt tokens.
    "cached": (report(7, 3, prompt_tokens_details={"cached_tokens": 4}), 7, 3),
    "more cached than prompt": (report(7, 3, prompt_tokens_details={"cached_tokens": 8}), 15, 3),
    "caches beside the prompt": (
        report(7, 3, cache_read_input_tokens=90, cache_creation_input_tokens=3),
        100,
        3,
    ),
    "reasoning beside the completion": (
        report(7, 9, 1016, completion_tokens_details={"reasoning_tokens": 1000}),
        7,
        1009,
    ),
    "a total that is too small": (report(7, 3, 5), 7, 3),
    "all of the context": (report(4096, 1), 4096, 1),
    "more than the context": (report(9000, 3), 9000, 3),
    "completion beyond the context": (report(7, 4097), 7, 4097),
}


@BOTH
@pytest.mark.parametrize("row", SOUND)
async def test_sound_usage_is_charged_to_the_token(
    scripted: ScriptedGateway, row: str, streamed: bool
) -> None:
    usage, prompt, written = SOUND[row]
    cost = prompt * PROMPT_PRICE + written * COMPLETION_PRICE
    absurd = _absurd_reports()
    found = await ask(scripted, usage, streamed=streamed, max_tokens=2048)
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated, entry.cost) == ("settled", False, cost)
    assert entry.overage == max(0, cost - entry.hold)
    balance = await scripted.balance()
    assert (balance["settled"], balance["held"], balance["resolutions"]) == (cost, 0, 1)
    # The client reads the same numbers that are charged.
    shown = usage_of(found, streamed=streamed)
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (prompt, written)
    assert shown["total_tokens"] == prompt + written
    assert shown["prompt_tokens_details"] == usage.get("prompt_tokens_details")
    assert _absurd_reports() == absurd


@BOTH
@pytest.mark.parametrize("excess", [1, 20])
async def test_usage_above_the_hold_has_its_overage(
    scripted: ScriptedGateway, excess: int, streamed: bool
) -> None:
    """U13."""
    bound = 2
    usage = report(7, bound + excess)
    found = await ask(scripted, usage, streamed=streamed, max_tokens=bound)
    entry = await scripted.entry_of(found)
    cost = 7 * PROMPT_PRICE + (bound + excess) * COMPLETION_PRICE
    assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, False)
    assert entry.overage == max(0, cost - entry.hold)
    assert (await scripted.balance())["settled"] == cost


@pytest.mark.parametrize(
    "records",
    [
        [*chat_records(usage=report(9, 9))[:-1], sse(usage_chunk()), DONE],
        [*chat_records(usage=None)[:-1], sse(usage_chunk()), DONE, sse(usage_chunk(report(9, 9)))],
        [sse(usage_chunk(report(9, 9))), *chat_records()],
        [sse(usage_chunk(report(-1, 1))), *chat_records()],
        [*chat_records()[:-1], sse(usage_chunk(report(-1, 1))), DONE],
        [*(sse(usage_chunk(report(7, number))) for number in range(50)), *chat_records()],
    ],
    ids=["twice", "after [DONE]", "first", "nonsense first", "nonsense last", "often"],
)
async def test_the_last_sound_report_counts_once(
    scripted: ScriptedGateway, records: list[bytes]
) -> None:
    """U15."""
    scripted.upstream.play(stream(records))
    found = await scripted.chat(stream=True)
    assert read_stream(found.text).done
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)
    assert (await scripted.balance())["resolutions"] == 1


async def test_odd_but_legal_streams_cut_anywhere(scripted: ScriptedGateway) -> None:
    """U9: The positions at which the network cuts a stream change neither the answer nor the charge."""
    records = [
        {"choices": [{"index": 0, "delta": {"content": "a\u00e9"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    ]
    first, second, third = (
        json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() for record in records
    )
    data = (
        b"\xef\xbb\xbf: hello\r\nretry: 3\r\nevent: x\r\nid: 1\r\ndata:" + first + b"\r\n\r\n\r"
        b"data: " + second.replace(b',"delta"', b'\rdata: ,"delta"') + b"\r\r: \n"
        b"data: " + third + b"\ndata\n\ndata: [DONE]\n\n"
    )

    async def cut_where_asked(peer: Peer) -> None:
        position = int(peer.request.json["user"])
        await cut(data, position, position + 1)(peer)

    scripted.upstream.play(cut_where_asked)
    positions = range(0, len(data), 2)
    async with scripted.another_client() as crowd:
        answers = await asyncio.gather(*(crowd.chat(stream=True, user=str(at)) for at in positions))
    streams = [read_stream(found.text) for found in answers]
    assert all(said.done and said.text == "a\u00e9" for said in streams)
    shapes = {json.dumps([chunk["choices"] for chunk in said.chunks]) for said in streams}
    assert len(shapes) == 1
    entries = await scripted.entries()
    assert len(entries) == len(answers)
    assert all((entry.cost, entry.estimated) == (COST, False) for entry in entries)


def many(count: int, *, missing: int | None = None) -> list[bytes]:
    """Returns a stream whose choices get text in turns and end in another order. `missing` never ends."""
    records = [sse(chunk(f"{index} ", index=index)) for index in range(count)]
    ends = sorted(range(count), key=lambda index: (index * 37) % count)
    records += [sse(chunk(finish="stop", index=index)) for index in ends if index != missing]
    return [*records, sse(usage_chunk(report(7, count))), DONE]


async def test_many_choices_in_one_stream(scripted: ScriptedGateway) -> None:
    """U23: n = 128 on a backend that supports `n`."""
    scripted.upstream.play(stream(many(128)))
    found = await scripted.chat(stream=True, n=128, max_tokens=10)
    said = read_stream(found.text)
    assert said.done
    indices = [chunk["choices"][0]["index"] for chunk in said.chunks]
    assert set(indices) == set(range(128))
    entry = await scripted.entry_of(found)
    assert entry.hold == entry.at_most(128 * 10)
    assert entry.cost == 7 * PROMPT_PRICE + 128 * COMPLETION_PRICE


async def test_one_of_many_choices_never_ends(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(stream(many(128, missing=5)))
    found = await scripted.chat(stream=True, n=128, max_tokens=10)
    said = read_stream(found.text)
    assert not said.done
    assert said.error is not None
    entry = await scripted.entry_of(found)
    # The usage was reported before the gateway found that a choice had not ended.
    assert (entry.status, entry.estimated) == ("settled", False)
    assert (await scripted.balance())["resolutions"] == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_many_choices_on_a_backend_that_makes_one_at_a_time(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str, streamed: bool
) -> None:
    async with scripted_gateway(
        data_dir, conninfo, shared_scripted.upstream, backend={"native_n": False}
    ) as scripted:
        scripted.upstream.play(chat())
        calls = len(scripted.upstream.requests)
        found = await scripted.chat(stream=streamed, n=128, max_tokens=10, seed=7)
        assert found.status_code == 200, found.text
        requests = [request.json for request in scripted.upstream.requests[calls:]]
        assert len(requests) == 128
        assert not any("n" in request for request in requests)
        assert len({request["seed"] for request in requests}) == 128
        if streamed:
            assert read_stream(found.text).done
        else:
            assert [choice["index"] for choice in found.json()["choices"]] == list(range(128))
        entry = await scripted.entry_of(found)
        assert entry.hold == entry.at_most(128 * 10)
        single = await scripted.entry_of(await scripted.chat(max_tokens=10))
        assert entry.prompt_tokens_max == 128 * single.prompt_tokens_max
        # Each of the 128 requests contained the prompt.
        assert entry.cost == 128 * (7 * PROMPT_PRICE + 3 * COMPLETION_PRICE)
        assert entry.overage == 0


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_one_failure_among_many_fails_the_call_once(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str, streamed: bool
) -> None:
    async def one_fails(peer: Peer) -> None:
        if peer.request.json["seed"] == 12:
            await refuse(500)(peer)
        else:
            await chat()(peer)

    async with scripted_gateway(
        data_dir, conninfo, shared_scripted.upstream, backend={"native_n": False}
    ) as scripted:
        scripted.upstream.play(one_fails)
        calls = len(scripted.upstream.requests)
        found = await scripted.chat(stream=streamed, n=8, max_tokens=10, seed=5)
        if streamed and found.status_code == 200:
            said = read_stream(found.text)
            assert said.error is not None
            assert said.error["code"] == "provider_unavailable"
        else:
            assert_error(found, 502, "provider_unavailable")
            assert found.headers["x-should-retry"] == "false"
        balance = await scripted.balance()
        assert balance["held"] == 0
        entry = await scripted.entry_of(found)
        sent = scripted.upstream.requests[calls:]
        assert (entry.status, entry.estimated) == ("settled", False)
        assert entry.cost == sum(request.json["seed"] != 12 for request in sent) * COST


async def test_prompts_that_were_never_sent_are_not_charged(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    """The second of a hundred completions fails, so the gateway does not send the other requests."""

    async def second_fails(peer: Peer) -> None:
        if peer.request.json["seed"] == 6:
            await refuse(500)(peer)
        else:
            await chat()(peer)

    backend = {"native_n": False, "retries": 0}
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        backend=backend,
        changed_constants={"setup.backends._PARTS_AT_ONCE": 1},
    ) as scripted:
        scripted.upstream.play(second_fails)
        calls = len(scripted.upstream.requests)
        found = await scripted.chat(stream=True, n=100, max_tokens=10, seed=5)
        said = read_stream(found.text)
        assert (said.text, said.done) == ("Hello", False)
        assert len(scripted.upstream.requests) == calls + 2
        entry = await scripted.entry_of(found)
        # The refused request costs nothing either.
        assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


async def test_an_estimated_completion_stays_within_its_hold(
    data_dir: Path, conninfo: str, shared_scripted: ScriptedGateway
) -> None:
    """Two of three completions report more than their share of the hold, which is charged with its overage.
    Of the third one nothing is known, so it costs at most its share."""
    usage = {"prompt_tokens": 3000, "completion_tokens": 3, "total_tokens": 3003}
    other = answer(completion(usage=usage))
    backend = {"native_n": False, "retries": 0}
    async with scripted_gateway(
        data_dir, conninfo, shared_scripted.upstream, backend=backend
    ) as scripted:
        scripted.upstream.play(other, reset_before_headers(), other)
        entry = await scripted.entry_of(await scripted.chat(n=3, max_tokens=2))
    assert (entry.status, entry.estimated) == ("settled", True)
    exact = 2 * (3000 * PROMPT_PRICE + 3 * COMPLETION_PRICE)
    assert entry.cost == exact + entry.hold // 3
    assert entry.overage == entry.cost - entry.hold


async def test_hidden_reasoning_of_completions_that_were_never_sent_is_not_charged(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    """Only the first of four requests is sent, because its answer breaks off."""
    backend = {"native_n": False, "retries": 0}
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        backend=backend,
        model={"supported_features": ["reasoning"]},
        changed_constants={"setup.backends._PARTS_AT_ONCE": 1},
    ) as scripted:
        scripted.upstream.play(reset_after(1))
        calls = len(scripted.upstream.requests)
        found = await scripted.chat(stream=True, n=4, max_tokens=10)
        assert read_stream(found.text).error is not None
        assert len(scripted.upstream.requests) == calls + 1
        entry = await scripted.entry_of(found)
        assert (entry.status, entry.estimated) == ("settled", True)
        assert entry.hold == entry.at_most(4 * 10)
        one_prompt = replace(entry, prompt_tokens_max=entry.prompt_tokens_max // 4)
        assert entry.cost == one_prompt.delivered(10)


async def test_the_reason_of_an_unsettled_call_quotes_no_prompt(
    data_dir: Path, conninfo: str, shared_scripted: ScriptedGateway
) -> None:
    """One call for a completion was sent when the backend refused another with a quotation."""
    refusal = refuse(400, "Input should be a string, input_value='my diary'")
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        backend={"native_n": False},
        limits={"inference_deadline_s": 1},
    ) as scripted:
        scripted.upstream.play(hang(), refusal)
        refused = await scripted.chat(n=2)
        assert_error(refused, 422, "unprocessable")
        entry = await scripted.entry_of(refused)
        assert (entry.status, entry.reason) == ("unsettled", "The backend refused the request.")
