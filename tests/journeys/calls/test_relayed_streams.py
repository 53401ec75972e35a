"""Tests streams whose pieces arrive one by one, so that their text is relayed: clients see and pay the
same as for a stream that is decoded into events."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, eventually, read_stream
from tests.support.upstream import DONE, Peer, Verb, chunk, reset_after, sse, stream, usage_chunk

_WORDS = [f"wörd{number} " for number in range(30)]
# Pieces this far apart arrive in separate reads.
_PAUSE_S = 0.005


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    return {"drain_s": 1}


def _answer(words: Iterable[str] = _WORDS) -> list[bytes]:
    pieces = [sse(chunk(word, system_fingerprint="fp")) for word in words]
    return [*pieces, sse(chunk(finish="stop")), sse(usage_chunk()), DONE]


def _one_by_one(words: Iterable[str] = _WORDS) -> Verb:
    return stream(_answer(words), pause_s=_PAUSE_S)


@pytest.mark.parametrize("includes_usage", [False, True])
async def test_chunks_are_ours_whoever_wrote_them(
    scripted: ScriptedGateway, *, includes_usage: bool
) -> None:
    scripted.upstream.play(_one_by_one())
    answer = await scripted.chat(stream=True, stream_options={"include_usage": includes_usage})
    said = read_stream(answer.text)
    assert (said.text, said.done) == ("".join(_WORDS), True)
    # The backend escapes characters that are not ASCII, and the gateway relays the text unchanged.
    assert r"w\u00f6rd29" in answer.text
    texts = [one for one in said.chunks if one["choices"] and one["choices"][0]["delta"]]
    assert len(texts) == 1 + len(_WORDS)
    heads = {
        (one["id"], one["object"], one["created"], one["model"], one["system_fingerprint"])
        for one in texts
    }
    assert len(heads) == 1
    assert texts[-1]["model"] == MODEL
    assert texts[-1]["id"].removeprefix("chatcmpl-") in answer.headers["x-request-id"].replace(
        "-", ""
    )
    # Every chunk has the same fields, whether it was relayed or encoded from an event.
    assert len({(tuple(one), tuple(one["choices"][0])) for one in texts}) == 1
    assert all(("usage" in one) == includes_usage for one in texts)
    assert (said.chunks[-1].get("usage") is not None) == includes_usage
    assert (await scripted.entry_of(answer)).cost == COST
    assert (await scripted.balance())["settled"] == COST


async def test_a_stream_that_breaks_off_is_paid_as_far_as_it_came(
    scripted: ScriptedGateway,
) -> None:
    async def verb(peer: Peer) -> None:
        await peer.send_head()
        for number in range(20):
            await peer.send_chunk(sse(chunk(f"{number} ")))
            await asyncio.sleep(_PAUSE_S)
        peer.reset()

    scripted.upstream.play(verb)
    answer = await scripted.chat(stream=True)
    said = read_stream(answer.text)
    assert said.error is not None
    assert said.text == "".join(f"{number} " for number in range(20))
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(20)


async def test_two_streams_do_not_mix(scripted: ScriptedGateway) -> None:
    other = await scripted.with_tenant()
    scripted.upstream.play(_one_by_one(["a "] * 60), _one_by_one(["b "] * 60))
    first = asyncio.create_task(scripted.chat(stream=True))
    await eventually(lambda: scripted.upstream.under_way == 1)
    second = await other.chat(stream=True)
    assert read_stream((await first).text).text == "a " * 60
    assert read_stream(second.text).text == "b " * 60
    assert (await scripted.balance())["settled"] == COST
    assert (await other.balance())["settled"] == COST


@pytest.mark.parametrize("abruptly", [False, True])
async def test_who_leaves_in_the_middle_pays_what_was_delivered(
    scripted: ScriptedGateway, *, abruptly: bool
) -> None:
    left = asyncio.Event()
    sent = 0

    async def verb(peer: Peer) -> None:
        nonlocal sent
        await peer.send_head()
        try:
            while not peer.left:
                await peer.send_chunk(sse(chunk(f"{sent} ")))
                sent += 1
                await asyncio.sleep(_PAUSE_S)
        finally:
            left.set()

    async with scripted.leaving_nothing():
        scripted.upstream.play(verb)
        async with raw_caller(scripted) as caller:
            await caller.ask(stream=True, max_tokens=2048)
            await caller.head()
            for _ in range(10):
                await caller.record()
            caller.leave(abruptly=abruptly)
            await asyncio.wait_for(left.wait(), 20)
    [entry] = await scripted.entries()
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.delivered(8) <= entry.cost <= entry.delivered_pieces(sent)


async def test_who_pauses_gets_the_rest_in_its_order(scripted: ScriptedGateway) -> None:
    """While the client does not read, its connection fills up. Later text must not overtake waiting text."""
    text = "x" * 2000
    words = [f"{number}:{text} " for number in range(300)]
    scripted.upstream.play(stream([*map(sse, map(chunk, words)), *_answer([])], pause_s=0))
    async with raw_caller(scripted, receive_buffer=4096) as caller:
        await caller.ask(stream=True, max_tokens=2048)
        await caller.head()
        await asyncio.sleep(0.3)
        read = b""
        while b"[DONE]" not in (record := await caller.record()):
            read += record
    places = [read.find(f'"{number}:'.encode()) for number in range(300)]
    assert -1 not in places
    assert places == sorted(places)
    [entry] = await scripted.entries()
    assert (entry.status, entry.cost) == ("settled", COST)


async def test_an_answer_goes_on_after_a_stream_that_was_reset(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(reset_after(3), _one_by_one())
    assert read_stream((await scripted.chat(stream=True)).text).error is not None
    assert read_stream((await scripted.chat(stream=True)).text).text == "".join(_WORDS)
