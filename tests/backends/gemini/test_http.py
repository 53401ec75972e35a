"""A backend that speaks Gemini, over HTTP: paths, headers, counts, faults and what they cost."""

from typing import Any

import pytest

from tests.backends.faults import BOTH, check_failure
from tests.backends.gemini.calls import gemini_call
from tests.support.backend_calls import KEY, Outcome, make, routed
from tests.support.upstream import Peer, Upstream, Verb, answer, cut, refuse, stream
from tests.support.upstream_gemini import (
    answer_records,
    error_body,
    generate,
    piece,
    record,
    refuse_gemini,
    text_part,
    text_then,
    whole,
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

_GEMINI: dict[str, Any] = {
    "protocol": WireProtocol.GEMINI,
    "credential": CredentialKind.X_GOOG_API_KEY,
    "tokenizer": Tokenizer.GEMINI,
}
_VERBS = [(False, "generateContent"), (True, "streamGenerateContent?alt=sse")]


async def _fault(verb: Verb, *, streamed: bool = True, **settings: Any) -> Outcome:
    async with Upstream(verb) as upstream, routed(upstream.url, **_GEMINI, **settings) as backend:
        outcome = await make(backend, gemini_call(streamed=streamed))
        assert len(upstream.requests) == 1
        return outcome


@pytest.mark.parametrize(("streamed", "verb"), _VERBS)
async def test_an_answer(streamed: bool, verb: str) -> None:
    async with Upstream(generate()) as upstream, routed(upstream.url, **_GEMINI) as backend:
        outcome = await make(backend, gemini_call(streamed=streamed))
        # An answer that was read to its end leaves its connection open for another one.
        assert upstream.open_connections == upstream.connections == 1
    outcome.check_complete()
    assert outcome.text() == "Hello"
    assert outcome.deltas[-1].finish == "stop"
    (request,) = upstream.requests
    assert request.path == f"/v1/models/upstream-model:{verb}"
    assert request.headers["x-goog-api-key"] == KEY
    assert "authorization" not in request.headers


@pytest.mark.parametrize(("streamed", "verb"), _VERBS)
async def test_vertex(streamed: bool, verb: str) -> None:
    settings = {**_GEMINI, "protocol": WireProtocol.VERTEX_GEMINI}
    settings["credential"] = CredentialKind.BEARER
    async with Upstream(generate()) as upstream:
        url = f"{upstream.url}/projects/p/locations/global/publishers/google/models"
        async with routed(url, **settings) as backend:
            outcome = await make(backend, gemini_call(streamed=streamed))
            assert outcome.text() == "Hello"
            assert await backend.count_prompt_tokens(gemini_call(), deadline=1e9) == 12
    called, counted = upstream.requests
    models = "/v1/projects/p/locations/global/publishers/google/models"
    assert called.path == f"{models}/upstream-model:{verb}"
    assert called.headers["authorization"] == f"Bearer {KEY}"
    assert counted.path == f"{models}/upstream-model:countTokens"
    assert counted.json == {"contents": called.json["contents"]}


async def test_the_provider_counts() -> None:
    call = gemini_call(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        temperature=0.5,
    )
    async with (
        Upstream(generate(input_tokens=321)) as upstream,
        routed(upstream.url, **_GEMINI) as backend,
    ):
        assert backend.counts_tokens
        assert await backend.count_prompt_tokens(call, deadline=1e9) == 321
    (request,) = upstream.requests
    assert request.path == "/v1/models/upstream-model:countTokens"
    assert request.json == {
        "generateContentRequest": {
            "model": "models/upstream-model",
            "contents": [{"role": "user", "parts": [text_part("Hi")]}],
            "systemInstruction": {"parts": [text_part("Be brief.")]},
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
        }
    }


@pytest.mark.parametrize(
    "verb", [refuse(429), answer({"totalTokens": -1}), answer({"tokens": 1}), answer(b"{")]
)
async def test_no_count_is_none(verb: Verb) -> None:
    async with Upstream(verb) as upstream, routed(upstream.url, **_GEMINI) as backend:
        assert await backend.count_prompt_tokens(gemini_call(), deadline=1e9) is None


async def test_several_completions_are_several_calls() -> None:
    async with Upstream(generate()) as upstream, routed(upstream.url, **_GEMINI) as backend:
        outcome = await make(FanOutBackend(backend, concurrency=2), gemini_call(choices=3))
    outcome.check_complete(choices=3)
    assert outcome.usage == Usage(36, 15)
    assert len(upstream.requests) == 3


@BOTH
@pytest.mark.parametrize(
    ("code", "status", "error", "charged"),
    [
        (400, "INVALID_ARGUMENT", ProviderRejected, False),
        (401, "UNAUTHENTICATED", BackendFailed, False),
        (403, "PERMISSION_DENIED", BackendFailed, False),
        (404, "NOT_FOUND", BackendFailed, False),
        (429, "RESOURCE_EXHAUSTED", RateLimited, False),
        (500, "INTERNAL", BackendFailed, False),
        (503, "UNAVAILABLE", BackendFailed, False),
        (504, "DEADLINE_EXCEEDED", BackendFailed, True),
    ],
)
async def test_a_refusal(
    streamed: bool, code: int, status: str, error: type[TollkeeperError], charged: bool
) -> None:
    """Also where the server has sent its 200 before it looks at the request."""
    outcome = await _fault(refuse_gemini(code, status, f"key {KEY}"), streamed=streamed)
    check_failure(outcome, error, charged=charged)
    body = error_body(code, status, f"key {KEY}")
    within = stream([record(body)]) if streamed else answer(body)
    check_failure(await _fault(within, streamed=streamed), error, charged=charged)
    del body["error"]["code"]
    within = stream([record(body)]) if streamed else answer(body)
    check_failure(await _fault(within, streamed=streamed), error, charged=charged)


@BOTH
async def test_a_wrong_key_is_not_the_callers_fault(streamed: bool) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    verb = refuse_gemini(400, "INVALID_ARGUMENT", "API key not valid.", detail)
    check_failure(await _fault(verb, streamed=streamed), BackendFailed, charged=False)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [("34.4s", 35), ("34s", 34), ("34.000s", 34), ("9999s", 120), ("soon", 5), (None, 5)],
)
async def test_the_wait_is_in_the_details(delay: str | None, seconds: int) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    outcome = await _fault(refuse_gemini(429, "RESOURCE_EXHAUSTED", "no", detail))
    assert isinstance(outcome.error, RateLimited)
    assert outcome.error.retry_after_s == seconds


async def test_another_replica_answers_for_one_that_is_overloaded() -> None:
    async with (
        Upstream(refuse_gemini(503, "UNAVAILABLE")) as busy,
        Upstream(generate()) as free,
        routed(busy.url, free.url, **_GEMINI, retries=1) as backend,
    ):
        for _ in range(4):
            assert (await make(backend, gemini_call())).text() == "Hello"
    assert len(free.requests) == 4


async def test_an_error_in_the_middle() -> None:
    error = record(error_body(503, "UNAVAILABLE"))
    outcome = await _fault(stream(text_then(error)))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")


async def test_a_stream_that_ends_early() -> None:
    outcome = await _fault(stream(text_then()))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")
    outcome = await _fault(stream([piece()]))
    check_failure(outcome, BackendFailed, charged=True)


async def test_a_report_after_the_end_is_read() -> None:
    later = {"promptTokenCount": 11, "candidatesTokenCount": 6, "totalTokenCount": 17}
    ended = record(whole(finish="STOP", usage=None))
    outcome = await _fault(
        stream([piece(text_part("Hi")), ended, record({"usageMetadata": later})])
    )
    outcome.check_complete()
    assert outcome.reports[-1].usage is not None
    assert outcome.reports[-1].usage.completion_tokens == 6


async def test_a_silent_answer_ends_at_the_deadline() -> None:
    async def verb(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(piece())
        await peer.until_left()

    async with Upstream(verb) as upstream, routed(upstream.url, **_GEMINI) as backend:
        outcome = await make(backend, gemini_call(streamed=True), deadline_s=0.3)
    check_failure(outcome, DeadlineExceeded, charged=True)


async def test_records_cut_anywhere_read_the_same() -> None:
    data = b"".join(answer_records())
    for position in range(1, len(data), 97):
        outcome = await _fault(cut(data, position))
        assert (outcome.text(), outcome.error) == ("Hello", None)
