"""Tests `truncation: auto`: which turns of a long conversation are kept, and that only they are charged."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.responses_answers import respond, sent
from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.tables import each
from tests.support.upstream import Peer, Upstream, Verb, answer, chat, refuse

CONTEXT = 4096
WORDS = "word " * 1000
IMAGE = {"type": "input_image", "image_url": "https://a.example/b.png"}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str, output: str) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": call_id, "output": output}]


def counts_words() -> Verb:
    """Returns the behaviour of a backend whose tokenizer counts every word as one token."""

    async def verb(peer: Peer) -> None:
        if not peer.request.path.endswith("/tokenize"):
            await chat()(peer)
            return
        contents = [message["content"] or "" for message in peer.request.json["messages"]]
        texts = [content for content in contents if isinstance(content, str)]
        await answer({"count": sum(len(text.split()) for text in texts)})(peer)

    return verb


@pytest.fixture(scope="module")
async def counting(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with (
        Upstream(counts_words()) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, backend={"tokenize_path": "/tokenize"}
        ) as running,
    ):
        yield running


async def kept(
    scripted: ScriptedGateway, *items: dict[str, Any], **fields: Any
) -> list[dict[str, Any]]:
    asked = {"max_output_tokens": 96, "truncation": "auto", **fields}
    found: list[dict[str, Any]] = (await sent(scripted, input=list(items), **asked))["messages"]
    return found


async def test_oldest_turns_are_left_out(scripted: ScriptedGateway) -> None:
    """Instructions and the last turn are kept. Tool outputs are removed together with their calls."""
    rules, now = {"role": "system", "content": "Rules."}, said("And now?")
    items = [rules, said(WORDS * 2), *called("c1", WORDS * 2), now]
    assert await kept(scripted, *items) == [rules, now]
    assert len(await kept(scripted, *items, truncation="disabled")) == len(items)


async def test_what_fits_stays(scripted: ScriptedGateway) -> None:
    assert len(await kept(scripted, said("One."), said("Two."), said("Three."))) == 3


async def test_last_turn_stays_even_if_it_does_not_fit(scripted: ScriptedGateway) -> None:
    assert await kept(scripted, said("One."), said(WORDS * 9)) == [said(WORDS * 9)]


@each(("turns", "left"), [(3, 3), (4, 4), (5, 4), (9, 4)])
async def test_count_decides_where_there_is_one(
    counting: ScriptedGateway, turns: int, left: int
) -> None:
    """Exactly four turns of a thousand tokens fit. The gateway's own estimate would keep fewer."""
    scripted = await counting.with_tenant()
    scripted.upstream.play(counts_words())
    items = [said(f"{at} " + "word " * 999) for at in range(turns)]
    before = len(scripted.upstream.requests)
    assert await kept(scripted, *items) == items[turns - left :]
    asked = [request.path for request in scripted.upstream.requests[before:]]
    # One request is for the hold, one for the answer. The search needs at most four token counts.
    assert len(asked) - 2 <= 4


LONG_CONVERSATIONS = {
    "alike": [100] * 200,
    "growing": list(range(1, 200)),
    "shrinking": list(range(200, 1, -1)),
    "one large turn": [10] * 100 + [3990] + [10] * 100,
}


@each("digits", [False, True])
@each("lengths", LONG_CONVERSATIONS.values(), ids=list(LONG_CONVERSATIONS))
async def test_a_long_conversation_is_counted_four_times_at_most(
    counting: ScriptedGateway, lengths: list[int], digits: bool
) -> None:
    """The kept turns fit. They use more than half of the context, unless the next older turn does not fit. The
    gateway's own estimate is more than twice as high for words, and even higher for digits."""
    scripted = await counting.with_tenant()
    scripted.upstream.play(counts_words())
    words = ["1234567 " if digits and at % 3 == 0 else "word " for at in range(len(lengths))]
    items = [said(word * length) for word, length in zip(words, lengths, strict=True)]
    before = len(scripted.upstream.requests)
    left = await kept(scripted, *items)
    asked = [request.path for request in scripted.upstream.requests[before:]]
    # One tokenizer request is for the hold.
    assert sum(path.endswith("/tokenize") for path in asked) - 1 <= 4
    assert left == items[len(items) - len(left) :]
    counts = [len(item["content"].split()) for item in items]
    kept_tokens = sum(counts[len(items) - len(left) :])
    assert kept_tokens <= CONTEXT - 96
    room_left = CONTEXT - 96 - kept_tokens
    assert kept_tokens > CONTEXT // 2 or counts[len(items) - len(left) - 1] > room_left


async def test_estimate_decides_where_the_count_fails(counting: ScriptedGateway) -> None:
    scripted = await counting.with_tenant()

    async def verb(peer: Peer) -> None:
        await (refuse(500) if peer.request.path.endswith("/tokenize") else chat())(peer)

    scripted.upstream.play(verb)
    items = [said(f"{at} {WORDS}") for at in range(4)]
    left = await kept(scripted, *items)
    assert left == items[4 - len(left) :]
    assert 1 <= len(left) < 4


async def test_what_is_left_out_is_not_paid_for(scripted: ScriptedGateway) -> None:
    """An image that is not sent to the backend costs nothing."""
    old = {"role": "user", "content": [{"type": "input_text", "text": WORDS * 4}, IMAGE]}
    items = [old, said("And now?")]
    for truncation, images in (("auto", 0), ("disabled", 1)):
        fields = {"input": items, "truncation": truncation}
        answered = await respond(scripted, **fields)
        assert answered.status_code == 200, answered.text
        query = "SELECT images FROM reservations WHERE id = %s"
        assert await scripted.sql(query, answered.headers["x-request-id"]) == [(images,)]


@each("part", [IMAGE, FILE])
async def test_hold_covers_what_no_text_tells(
    scripted: ScriptedGateway, part: dict[str, Any]
) -> None:
    """An image may need more tokens than this model's context, and a file's token count is unknown."""
    asked = {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, part]}
    entry = await scripted.entry_of(await respond(scripted, input=[asked]))
    assert entry.prompt_tokens_max == CONTEXT
    plain = await scripted.entry_of(await respond(scripted, input="What is this?"))
    assert plain.prompt_tokens_max < 200
