"""Tests a backend with the Messages protocol over HTTP: paths, headers, token counts and uncharged errors."""

from typing import Any

from tests.providers.anthropic.calls import claude_call
from tests.providers.faults import check_failure
from tests.support.backend_calls import KEY, Outcome, make, routed
from tests.support.tables import each
from tests.support.upstream import Upstream, Verb, stream
from tests.support.upstream_messages import (
    begin,
    block_records,
    end,
    error_record,
    message,
    text_block,
)
from tollkeeper.core.errors import BackendFailed
from tollkeeper.providers.config import Tokenizer, WireProtocol
from tollkeeper.providers.credentials import CredentialKind

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


_FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}


async def test_a_call_that_has_searched_is_charged_and_not_repeated() -> None:
    """The provider has made the search and charges for it, although the answer has no text."""
    records = [begin(), *block_records(0, _FOUND), error_record("overloaded_error")]
    call = claude_call(streamed=True, web_search_options={})
    async with (
        Upstream(stream(records)) as first,
        Upstream(stream(records)) as second,
        routed(first.url, second.url, **_MESSAGES, retries=1) as backend,
    ):
        outcome = await make(backend, call)
        assert len(first.requests) + len(second.requests) == 1
    assert outcome.error is not None
    assert outcome.error.charged
    assert not outcome.deltas  # so the client gets an error, and not the beginning of an answer
    assert outcome.reports[-1].usage is not None
    assert outcome.reports[-1].usage.web_searches == 1


async def test_the_idle_timeout_does_not_run_after_a_search() -> None:
    """After a search, the model may reason silently before the first text."""
    searched = [begin(), *block_records(0, _FOUND)]
    records = [b"".join(searched), b"".join([*block_records(1, text_block()), *end()])]
    call = claude_call(streamed=True, web_search_options={})
    async with (
        Upstream(stream(records, pause_s=0.3)) as upstream,
        routed(upstream.url, **_MESSAGES, idle_timeout_s=0.1) as backend,
    ):
        outcome = await make(backend, call)
    assert outcome.text() == "Hello"
