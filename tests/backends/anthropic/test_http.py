"""Tests a backend with the Messages protocol over HTTP: paths, headers, token counts and uncharged errors."""

from typing import Any

from tests.backends.anthropic.calls import claude_call
from tests.backends.faults import check_failure
from tests.support.backend_calls import KEY, Outcome, make, routed
from tests.support.tables import each
from tests.support.upstream import Upstream, Verb, stream
from tests.support.upstream_messages import (
    begin,
    error_record,
    message,
)
from tollkeeper.backends.config import Tokenizer, WireProtocol
from tollkeeper.backends.credentials import CredentialKind
from tollkeeper.domain.errors import (
    BackendFailed,
)

_MESSAGES: dict[str, Any] = {
    "protocol": WireProtocol.MESSAGES,
    "credential": CredentialKind.X_API_KEY,
    "tokenizer": Tokenizer.PROTOCOL,
}


async def _fault(verb: Verb, *, streamed: bool = True, **settings: Any) -> Outcome:
    async with Upstream(verb) as upstream, routed(upstream.url, **_MESSAGES, **settings) as backend:
        outcome = await make(backend, claude_call(streamed=streamed))
        assert len(upstream.requests) == 1
        return outcome


@each(("streamed", "verb"), [(False, "rawPredict"), (True, "streamRawPredict")])
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
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert set(request.json) == {
        *("model", "messages", "system", "tools", "thinking", "output_config"),
    }


async def test_an_error_in_the_place_of_the_answer() -> None:
    outcome = await _fault(stream([begin(), error_record("overloaded_error")]))
    check_failure(outcome, BackendFailed, charged=False)
