"""Tests a backend with the Gemini protocol over HTTP: paths, headers, token counts, errors and charges."""

from typing import Any

import pytest

from tests.providers.faults import BOTH, check_failure
from tests.providers.gemini.calls import gemini_call
from tests.support.backend_calls import KEY, Outcome, make, routed
from tests.support.tables import each
from tests.support.upstream import Upstream, Verb, answer, stream
from tests.support.upstream_gemini import (
    error_body,
    generate,
    piece,
    record,
    refuse_gemini,
    text_part,
    whole,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited, TollkeeperError
from tollkeeper.providers.config import Tokenizer, WireProtocol
from tollkeeper.providers.credentials import CredentialKind

_GEMINI: dict[str, Any] = {
    "protocol": WireProtocol.GEMINI,
    "credential": CredentialKind.X_GOOG_API_KEY,
    "tokenizer": Tokenizer.PROTOCOL,
}
_VERBS = [(False, "generateContent"), (True, "streamGenerateContent?alt=sse")]


async def _fault(verb: Verb, *, streamed: bool = True, **settings: Any) -> Outcome:
    async with Upstream(verb) as upstream, routed(upstream.url, **_GEMINI, **settings) as backend:
        outcome = await make(backend, gemini_call(streamed=streamed))
        assert len(upstream.requests) == 1
        return outcome


@each(("streamed", "verb"), _VERBS)
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
    """The error may also be the body of a 200 response, if the server sends the status first."""
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


@each(
    ("delay", "seconds"),
    [("34.4s", 35), ("34s", 34), ("34.000s", 34), ("9999s", 120), ("soon", 5), (None, 5)],
)
async def test_the_wait_is_in_the_details(delay: str | None, seconds: int) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    outcome = await _fault(refuse_gemini(429, "RESOURCE_EXHAUSTED", "no", detail))
    assert isinstance(outcome.error, RateLimited)
    assert outcome.error.retry_after_s == seconds


async def test_a_report_after_the_end_is_read() -> None:
    later = {"promptTokenCount": 11, "candidatesTokenCount": 6, "totalTokenCount": 17}
    ended = record(whole(finish="STOP", usage=None))
    outcome = await _fault(
        stream([piece(text_part("Hi")), ended, record({"usageMetadata": later})])
    )
    outcome.check_complete()
    assert outcome.reports[-1].usage is not None
    assert outcome.reports[-1].usage.completion_tokens == 6
