"""Tests that, under an enforcing request policy, only the judge gets a prompt before the verdict: not
even the backend's tokenizer gets any part of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import MODEL
from tests.support.token_counts import counts
from tests.support.upstream import Peer, answer, chat, refuse
from tollkeeper.policies.policy import Policy

COUNT = 11
# A text so long that `truncation: auto` asks the tokenizer for its size.
_LONG = "word " * 30_000


async def _counting(peer: Peer) -> None:
    is_count = peer.request.path.endswith("/tokenize")
    await (answer({"count": COUNT}) if is_count else chat())(peer)


@pytest.fixture(scope="module")
async def shared_counting(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir,
        conninfo,
        backend={"tokenize_path": "/tokenize"},
        model={"context_length": 10_000},
    ) as running:
        yield running


@pytest.fixture
async def judged(shared_counting: JudgedGateway) -> JudgedGateway:
    fresh = await shared_counting.for_next_test()
    fresh.model.requests.clear()
    fresh.model.play(_counting)
    return fresh


async def _chat(judged: JudgedGateway, **fields: Any) -> httpx2.Response:
    return await judged.chat("a bomb", **fields)


async def _truncated(judged: JudgedGateway, **fields: Any) -> httpx2.Response:
    turns = [{"role": "user", "content": text} for text in (_LONG, "a bomb")]
    return await respond(judged.scripted, input=turns, truncation="auto", **fields)


async def _count(judged: JudgedGateway) -> httpx2.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a bomb"}]}
    return await judged.scripted.gateway.client.post(
        "/v1/messages/count_tokens", json=body, headers=judged.scripted.tenant.as_customer
    )


CALLS = pytest.mark.parametrize("call", [_chat, _truncated])
_Call = Callable[..., Awaitable[httpx2.Response]]


@CALLS
async def test_without_a_policy_the_tokenizer_is_asked(judged: JudgedGateway, call: _Call) -> None:
    found = await call(judged)
    assert found.status_code == 200, found.text
    assert judged.model.requests[0].path == "/tokenize"


@CALLS
async def test_a_denied_prompt_reaches_no_tokenizer(judged: JudgedGateway, call: _Call) -> None:
    policy = await judged.enforce(direction="request")
    assert_denied(await call(judged), policy, "request")
    assert judged.model.requests == []


@CALLS
async def test_nothing_leaves_while_the_judge_is_down(judged: JudgedGateway, call: _Call) -> None:
    await judged.enforce(direction="request")
    judged.judge.opinion = lambda asked: refuse(500)
    assert_error(await call(judged), 503, "service_unavailable")
    assert judged.model.requests == []


@CALLS
async def test_a_named_policy_counts_as_well(judged: JudgedGateway, call: _Call) -> None:
    policy = await judged.enforce(direction="both", scope="unattached")
    assert_denied(await call(judged, policy_ids=[policy.id]), policy, "request")
    assert judged.model.requests == []


async def test_the_hold_has_the_estimate_and_not_the_count(judged: JudgedGateway) -> None:
    counted = await judged.scripted.entry_of(await judged.chat("peace"))
    await judged.enforce(direction="request")
    judged.model.requests.clear()
    estimated = await judged.scripted.entry_of(await judged.chat("peace"))
    assert counted.prompt_tokens_max == COUNT < estimated.prompt_tokens_max
    assert [request.path for request in judged.model.requests] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "fields",
    [{"mode": "monitoring"}, {"mode": "enforcing", "direction": "response"}],
)
async def test_other_policies_leave_the_tokenizer_alone(
    judged: JudgedGateway, fields: dict[str, Any]
) -> None:
    await judged.publish("war", **fields)
    assert (await judged.chat("peace")).status_code == 200
    assert judged.model.requests[0].path == "/tokenize"


async def test_tokens_are_counted_by_our_own_estimate(judged: JudgedGateway) -> None:
    judged.model.play(counts(COUNT))
    exact = await _count(judged)
    assert (exact.json(), len(judged.model.requests)) == ({"input_tokens": COUNT}, 1)
    policy = await judged.enforce(direction="request")
    for _ in range(2):
        found = await _count(judged)
        assert found.status_code == 200, found.text
        assert found.headers["x-token-count-estimated"] == "true"
        assert found.json()["input_tokens"] >= 1
        judged.judge.opinion = lambda asked: refuse(500)
    assert len(judged.model.requests) == 1
    await judged.change("pause", policy)
    assert (await _count(judged)).headers["x-token-count-estimated"] == "false"


@CALLS
async def test_a_policy_that_is_published_during_the_count(
    judged: JudgedGateway, call: _Call
) -> None:
    """The tokenizer already has the prompt, so the gateway refuses the call under the new policy. If the
    client repeats the call, it is judged first."""
    draft = await judged.draft(mode="enforcing", direction="request")
    published: list[Policy] = []

    async def publish_and_count(peer: Peer) -> None:
        if not published:
            published.append(await judged.change("publish", draft))
        await _counting(peer)

    judged.model.play(publish_and_count)
    found = await call(judged)
    assert_error(found, 503, "service_unavailable")
    assert found.headers["retry-after"] == "1"
    assert {request.path for request in judged.model.requests} == {"/tokenize"}
    assert (await judged.scripted.entry_of(found)).status == "released"
    assert judged.judge.asked == []
    judged.model.requests.clear()
    assert_denied(await call(judged), published[0], "request")
    assert judged.model.requests == []
