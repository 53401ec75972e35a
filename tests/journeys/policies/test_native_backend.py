"""Policies over a backend that speaks Responses itself: judged and paid for as any other."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backend_calls import MODEL as CATALOG_MODEL
from tests.support.backend_calls import routed
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import COST, read_stream
from tests.support.upstream import Upstream
from tests.support.upstream_responses import respond as responding
from tests.support.upstream_wire import call_item, message_item, reasoning_item
from tollkeeper.backends.config import WireProtocol
from tollkeeper.services.policies.judge import Judge, JudgeConfig, Question

BOTH = pytest.mark.parametrize("streamed", [False, True])


@pytest.fixture(scope="module")
async def shared_native(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(data_dir, conninfo, backend={"protocol": "responses"}) as judged:
        yield judged


@pytest.fixture
async def judged(shared_native: JudgedGateway) -> JudgedGateway:
    fresh = await shared_native.for_next_test()
    fresh.model.play(responding())
    return fresh


async def test_a_request_that_matches_never_leaves(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    before = len(judged.model.requests)
    assert_denied(await judged.chat("The bomb."), policy, "request")
    assert len(judged.model.requests) == before
    assert (await judged.chat("The flower.")).status_code == 200


@BOTH
@pytest.mark.parametrize(
    "item",
    [
        message_item("a bomb"),
        reasoning_item("a bomb"),
        reasoning_item("a bomb", summary=True),
        call_item("c", "look", '{"at": "a bomb"}'),
    ],
    ids=["text", "reasoning", "summary", "call"],
)
async def test_an_answer_that_matches_is_kept_back_and_paid(
    judged: JudgedGateway, item: dict[str, object], streamed: bool
) -> None:
    policy = await judged.enforce(direction="response")
    judged.model.play(responding(item))
    found = await judged.chat(stream=streamed)
    assert_denied(found, policy, "response")
    assert (await judged.scripted.entry_of(found)).cost == COST
    assert_denied(await respond(judged.scripted, stream=streamed), policy, "response")


@BOTH
async def test_an_answer_that_does_not_match(judged: JudgedGateway, streamed: bool) -> None:
    await judged.enforce(direction="response")
    found = await judged.chat(stream=streamed)
    assert found.status_code == 200
    if streamed:
        assert read_stream(found.text).text == "Hello"
    assert judged.judge.texts[-1].endswith("Hello")


async def test_the_judge_itself_may_speak_responses() -> None:
    alternatives = [{"token": "Yes", "logprob": -0.105}, {"token": "No", "logprob": -2.303}]
    found = [{**alternatives[0], "top_logprobs": alternatives}]
    verb = responding(
        message_item("Yes", logprobs=found),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    config = JudgeConfig(
        deadline_s=10,
        concurrency=1,
        window_characters=1000,
        overlap_characters=10,
        top_logprobs=20,
    )
    async with (
        Upstream(verb) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        judge = Judge(backend, CATALOG_MODEL, b"secret", config)
        [opinion] = await judge.ask_all("A text.", [Question("q", "Is it?")])
        assert opinion.complete, opinion.reason
        assert opinion.highest is not None
        assert 8900 <= opinion.highest <= 9100
        request = json.loads(upstream.requests[-1].body)
        assert request["max_output_tokens"] == 1
        assert request["include"] == ["message.output_text.logprobs"]
        assert request["input"][-1]["content"].endswith("Answer (Yes or No):")
