"""A backend that speaks Messages, over HTTP: paths, headers, counts, faults and what they cost."""

from typing import Any

import pytest

from tests.backends.anthropic.calls import claude_call
from tests.backends.faults import BOTH, check_failure
from tests.support.backend_calls import KEY, Outcome, make, routed
from tests.support.upstream import Peer, Upstream, Verb, answer, cut, refuse, stream
from tests.support.upstream_messages import (
    begin,
    error_record,
    message,
    message_records,
    refuse_message,
    text_then,
)
from tollkeeper.backends.config import Tokenizer, WireProtocol
from tollkeeper.backends.credentials import CredentialKind
from tollkeeper.backends.fan_out import FanOutBackend
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)
from tollkeeper.domain.usage import Usage

_MESSAGES: dict[str, Any] = {
    "protocol": WireProtocol.MESSAGES,
    "credential": CredentialKind.X_API_KEY,
    "tokenizer": Tokenizer.MESSAGES,
}


async def _fault(verb: Verb, *, streamed: bool = True, **settings: Any) -> Outcome:
    async with Upstream(verb) as upstream, routed(upstream.url, **_MESSAGES, **settings) as backend:
        outcome = await make(backend, claude_call(streamed=streamed))
        assert len(upstream.requests) == 1
        return outcome


@BOTH
async def test_an_answer(streamed: bool) -> None:
    async with Upstream(message()) as upstream, routed(upstream.url, **_MESSAGES) as backend:
        outcome = await make(backend, claude_call(streamed=streamed))
    assert outcome.error is None
    assert outcome.text() == "Hello"
    assert outcome.deltas[-1].finish == "stop"
    (request,) = upstream.requests
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers


@pytest.mark.parametrize(("streamed", "verb"), [(False, "rawPredict"), (True, "streamRawPredict")])
async def test_vertex(streamed: bool, verb: str) -> None:
    settings = {**_MESSAGES, "protocol": WireProtocol.VERTEX_MESSAGES}
    settings["credential"] = CredentialKind.BEARER
    async with Upstream(message()) as upstream:
        url = f"{upstream.url}/projects/p/locations/global/publishers/anthropic/models"
        async with routed(url, **settings) as backend:
            outcome = await make(backend, claude_call(streamed=streamed))
            assert outcome.text() == "Hello"
            assert await backend.count_prompt_tokens(claude_call(), deadline=1e9) == 12
    called, counted = upstream.requests
    models = "/v1/projects/p/locations/global/publishers/anthropic/models"
    assert called.path == f"{models}/upstream-model:{verb}"
    assert counted.path == f"{models}/count-tokens:rawPredict"
    assert counted.json["model"] == "upstream-model"
    assert called.headers["authorization"] == f"Bearer {KEY}"
    assert "anthropic-version" not in called.headers


async def test_the_provider_counts() -> None:
    call = claude_call(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        temperature=0.5,
        reasoning_effort="low",
    )
    async with (
        Upstream(message(input_tokens=321)) as upstream,
        routed(upstream.url, **_MESSAGES) as backend,
    ):
        assert backend.counts_tokens
        assert await backend.count_prompt_tokens(call, deadline=1e9) == 321
    (request,) = upstream.requests
    assert request.path == "/v1/messages/count_tokens"
    assert request.headers["x-api-key"] == KEY
    assert set(request.json) == {
        *("model", "messages", "system", "tools", "thinking", "output_config"),
    }


@pytest.mark.parametrize(
    "verb", [refuse(429), answer({"input_tokens": -1}), answer({"tokens": 1}), answer(b"{")]
)
async def test_no_count_is_none(verb: Verb) -> None:
    async with Upstream(verb) as upstream, routed(upstream.url, **_MESSAGES) as backend:
        assert await backend.count_prompt_tokens(claude_call(), deadline=1e9) is None


async def test_several_completions_are_several_calls() -> None:
    async with Upstream(message()) as upstream, routed(upstream.url, **_MESSAGES) as backend:
        outcome = await make(FanOutBackend(backend, concurrency=2), claude_call(choices=3))
    outcome.check_complete(choices=3)
    assert outcome.usage == Usage(36, 15)
    assert len(upstream.requests) == 3


@BOTH
@pytest.mark.parametrize(
    ("status", "kind", "error", "charged"),
    [
        (400, "invalid_request_error", ProviderRejected, False),
        (401, "authentication_error", BackendFailed, False),
        (402, "billing_error", BackendFailed, False),
        (403, "permission_error", BackendFailed, False),
        (404, "not_found_error", BackendFailed, False),
        (413, "request_too_large", BackendFailed, False),
        (429, "rate_limit_error", RateLimited, False),
        (500, "api_error", BackendFailed, False),
        (504, "timeout_error", BackendFailed, True),
        (529, "overloaded_error", BackendFailed, False),
    ],
)
async def test_a_refusal(
    streamed: bool, status: int, kind: str, error: type[TollkeeperError], charged: bool
) -> None:
    outcome = await _fault(refuse_message(status, kind, f"key {KEY}"), streamed=streamed)
    check_failure(outcome, error, charged=charged)


async def test_another_replica_answers_for_one_that_is_overloaded() -> None:
    async with (
        Upstream(refuse_message(529, "overloaded_error")) as busy,
        Upstream(message()) as free,
        routed(busy.url, free.url, **_MESSAGES, retries=1) as backend,
    ):
        for _ in range(4):
            assert (await make(backend, claude_call())).text() == "Hello"
    assert len(free.requests) == 4


async def test_an_error_in_the_place_of_the_answer() -> None:
    outcome = await _fault(stream([begin(), error_record("overloaded_error")]))
    check_failure(outcome, BackendFailed, charged=False)


async def test_an_error_in_the_middle() -> None:
    outcome = await _fault(stream(text_then(error_record("overloaded_error"))))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")


async def test_a_stream_that_ends_early() -> None:
    outcome = await _fault(stream(text_then()))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")
    outcome = await _fault(stream([begin()]))
    check_failure(outcome, BackendFailed, charged=True)


async def test_pings_do_not_hold_a_silent_answer_up_for_ever() -> None:
    """They are no progress before the answer begins: only the deadline bounds that."""

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(begin())
        await peer.until_left()

    async with Upstream(verb) as upstream, routed(upstream.url, **_MESSAGES) as backend:
        outcome = await make(backend, claude_call(streamed=True), deadline_s=0.3)
    check_failure(outcome, DeadlineExceeded, charged=True)


async def test_records_cut_anywhere_read_the_same() -> None:
    data = b"".join(message_records())
    for position in range(1, len(data), 97):
        outcome = await _fault(cut(data, position))
        assert (outcome.text(), outcome.error) == ("Hello", None)
