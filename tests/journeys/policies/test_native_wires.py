"""Tests that calls to backends with other protocols than chat are judged and charged like chat calls."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import upstream_converse as converse
from tests.support import upstream_gemini as gemini
from tests.support import upstream_messages as messages
from tests.support import upstream_responses as responses
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import COMPLETION_PRICE, COST, PROMPT_PRICE, read_stream
from tests.support.upstream import Verb
from tests.support.upstream_wire import call_item, message_item, reasoning_item

BOTH = pytest.mark.parametrize("streamed", [False, True])
# The usage report of an ordinary answer on a native wire: 12 prompt tokens and 5 completion tokens.
_NATIVE_COST = 12 * PROMPT_PRICE + 5 * COMPLETION_PRICE
_Block = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """Answers of one protocol: each block contains the word "bomb". `cost` is the cost of one answer."""

    ordinary: Callable[..., Verb]
    blocks: Mapping[str, _Block]
    cost: int = _NATIVE_COST


_MESSAGES = {
    "text": messages.text_block("a bomb"),
    "reasoning": messages.thinking_block("a bomb", "c2ln"),
    "call": messages.tool_block("c1", "look", at="a bomb"),
}
SAID = {
    "messages": Said(messages.message, _MESSAGES),
    "gemini": Said(
        gemini.generate,
        {
            "text": gemini.text_part("a bomb"),
            "reasoning": gemini.thought_part("a bomb"),
            "call": gemini.call_part("c1", "look", at="a bomb"),
        },
    ),
    "converse": Said(
        converse.converse,
        {
            "text": converse.text_block("a bomb"),
            "reasoning": converse.reasoning_block("a bomb", "c2ln"),
            "call": converse.use_block("c1", "look", at="a bomb"),
        },
    ),
    "bedrock_messages": Said(converse.invoke, _MESSAGES),
    "responses": Said(
        responses.respond,
        {
            "text": message_item("a bomb"),
            "reasoning": reasoning_item("a bomb"),
            "summary": reasoning_item("a bomb", summary=True),
            "call": call_item("c", "look", '{"at": "a bomb"}'),
            "custom call": {
                "type": "custom_tool_call",
                "id": "ctc_1",
                "call_id": "c",
                "name": "look",
                "input": "at a bomb",
            },
        },
        cost=COST,
    ),
}


@pytest.fixture(scope="module")
async def shared_native(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, JudgedGateway]]:
    async with AsyncExitStack() as stack:
        found = {}
        for protocol in SAID:
            backend = {"protocol": protocol, "tokenize_path": "none"}
            running = judged_gateway(data_dir, conninfo, backend=backend)
            found[protocol] = await stack.enter_async_context(running)
        yield found


@pytest.fixture(params=SAID)
def protocol(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def judged(shared_native: dict[str, JudgedGateway], protocol: str) -> JudgedGateway:
    fresh = await shared_native[protocol].for_next_test()
    fresh.model.play(SAID[protocol].ordinary())
    return fresh


async def test_a_request_that_matches_never_leaves(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    before = len(judged.model.requests)
    assert_denied(await judged.chat("The bomb."), policy, "request")
    assert len(judged.model.requests) == before
    assert (await judged.chat("The flower.")).status_code == 200


# Conversations in which two turns of one role become adjacent texts of one message. The words "bo" and
# "mb" stand in these turns.
_SPLIT: dict[str, list[_Block]] = {
    "system": [
        {"role": "system", "content": "Say bo"},
        {"role": "system", "content": "mb."},
        {"role": "user", "content": "Hi"},
    ],
    "system and developer": [
        {"role": "system", "content": "Say bo"},
        {"role": "developer", "content": "mb."},
        {"role": "user", "content": "Hi"},
    ],
    "user": [{"role": "user", "content": "Say bo"}, {"role": "user", "content": "mb."}],
    "user, in parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " b"}],
        },
        {"role": "user", "content": "o"},
        {"role": "user", "content": [{"type": "text", "text": "mb."}]},
    ],
    "user, around an empty answer": [
        {"role": "user", "content": "Say bo"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "mb."},
    ],
    "user, around reasoning": [
        {"role": "user", "content": "Say bo"},
        {"role": "assistant", "reasoning": "Well.", "content": ""},
        {"role": "user", "content": "mb."},
    ],
    "assistant": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I say bo"},
        {"role": "assistant", "content": "mb."},
        {"role": "user", "content": "Go on"},
    ],
}
# The same words in turns that no protocol joins.
_APART: dict[str, list[_Block]] = {
    "user and assistant": [
        {"role": "user", "content": "Say bo"},
        {"role": "assistant", "content": "mb."},
        {"role": "user", "content": "Go on"},
    ],
    "system and user": [
        {"role": "system", "content": "Say bo"},
        {"role": "user", "content": "mb."},
    ],
    "around an answer": [
        {"role": "user", "content": "Say bo"},
        {"role": "assistant", "content": "What?"},
        {"role": "user", "content": "mb."},
    ],
}


# Answers that say the word only in a reason for their end.
_ENDINGS: dict[str, Callable[[], Verb]] = {
    "messages": lambda: messages.message(stop_reason="a bomb"),
    "gemini": lambda: gemini.generate(finish="a bomb"),
    "converse": lambda: converse.converse(stop_reason="a bomb"),
    "bedrock_messages": lambda: converse.invoke(stop_reason="a bomb"),
}


@BOTH
@pytest.mark.parametrize("protocol", _ENDINGS)
async def test_an_unknown_reason_for_the_end_stays_in_the_gateway(
    judged: JudgedGateway, protocol: str, streamed: bool
) -> None:
    await judged.enforce(direction="response")
    judged.model.play(_ENDINGS[protocol]())
    found = await judged.chat(stream=streamed)
    assert found.status_code == 200
    assert "bomb" not in found.text
    assert '"finish_reason":"stop"' in found.text
    assert (await judged.entry(found)).finish == "a bomb"


async def test_a_word_in_two_turns_is_judged_if_the_wire_joins_the_turns(
    judged: JudgedGateway, protocol: str
) -> None:
    """The Responses protocol joins no turns, so its backend receives no such word."""
    policy = await judged.enforce(direction="request")
    for conversation in _SPLIT.values():
        before = len(judged.model.requests)
        found = await judged.chat(messages=conversation)
        if protocol == "responses":
            assert found.status_code == 200, conversation
        else:
            assert found.status_code == 403, conversation
            assert_denied(found, policy, "request")
            assert len(judged.model.requests) == before


async def test_turns_that_no_wire_joins_are_judged_apart(judged: JudgedGateway) -> None:
    await judged.enforce(direction="request")
    for conversation in _APART.values():
        found = await judged.chat(messages=conversation)
        assert found.status_code == 200, (conversation, found.text)


@BOTH
@pytest.mark.parametrize(
    ("protocol", "where"),
    [(protocol, where) for protocol, said in SAID.items() for where in said.blocks],
)
async def test_an_answer_that_matches_is_kept_back_and_paid(
    judged: JudgedGateway, protocol: str, where: str, streamed: bool
) -> None:
    policy = await judged.enforce(direction="response")
    said = SAID[protocol]
    judged.model.play(said.ordinary(said.blocks[where]))
    found = await judged.chat(stream=streamed)
    assert_denied(found, policy, "response")
    assert (await judged.scripted.entry_of(found)).cost == said.cost
    assert_denied(await respond(judged.scripted, stream=streamed), policy, "response")


@BOTH
async def test_an_answer_that_does_not_match(judged: JudgedGateway, streamed: bool) -> None:
    await judged.enforce(direction="response")
    found = await judged.chat(stream=streamed)
    assert found.status_code == 200
    if streamed:
        assert read_stream(found.text).text == "Hello"
    assert judged.judge.texts[-1].endswith("Hello")
