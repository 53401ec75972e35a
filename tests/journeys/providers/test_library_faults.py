"""Calls through the real library that go wrong: what becomes of them is what becomes of any other.

Each provider of `tests/support/library.py` is a scripted server, reached by the library's own code
and the provider's own SDK.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.faults import BOTH
from tests.support.backend_calls import Outcome, make, make_call, until, usage_in
from tests.support.library import KEY, PROTOCOLS, PROVIDERS, Library, running_library
from tests.support.upstream import (
    Peer,
    Verb,
    answer,
    close_before_headers,
    completion,
    hang,
    refuse,
    reset_before_headers,
)
from tests.support.upstream import stream as streamed_records
from tests.support.upstream_cohere import whole_answer as cohere_answer
from tests.support.upstream_gemini import text_part
from tests.support.upstream_gemini import whole as gemini_answer
from tests.support.upstream_messages import begin, error_record, whole_message
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    OptionUnsupported,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)

EACH = pytest.mark.parametrize("provider", PROVIDERS)
_REFUSED = (
    {"name": "unknown", "kind": "library", "provider": "nobody"},
    {"name": "retrying", "kind": "library", "provider": "huggingface"},
    {"name": "lacking", "kind": "library", "provider": "groq"},
)


@pytest.fixture(scope="module")
async def library(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Library]:
    folder = tmp_path_factory.mktemp("library")
    key = {"api_key_file": str(folder / "key")}
    more = tuple({**declared, **key} for declared in _REFUSED)
    async with running_library(folder, more_backends=more) as running:
        yield running


async def _outcome(
    library: Library, provider: str, *script: Verb, deadline_s: float = 60.0, **fields: Any
) -> Outcome:
    """What comes of one call, for which the provider gets one request."""
    upstream = library.play(provider, *script)
    before = len(upstream.requests)
    async with library.backend(provider) as backend:
        outcome = await make(backend, make_call(**fields), deadline_s=deadline_s)
    assert len(upstream.requests) == before + 1, "a hidden retry would be charged twice"
    return outcome


def _check(
    outcome: Outcome, error: type[TollkeeperError], *, charged: bool, text: str = ""
) -> TollkeeperError:
    assert type(outcome.error) is error, outcome.error
    assert outcome.error.charged is charged
    assert outcome.text() == text
    assert KEY not in outcome.error.message
    assert "127.0.0.1" not in outcome.error.message
    return outcome.error


@BOTH
@EACH
async def test_an_answer_is_read_with_its_usage(
    library: Library, provider: str, streamed: bool
) -> None:
    outcome = await _outcome(library, provider, streamed=streamed)
    outcome.check_complete()
    assert outcome.text() == "Hello"
    usage = usage_in(outcome.reports[-1])
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == PROTOCOLS[
        provider
    ].usage
    request = library.upstreams[provider].requests[-1]
    protocol = PROTOCOLS[provider]
    assert request.headers[protocol.key_header] == protocol.key_prefix + KEY


@BOTH
@EACH
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ProviderRejected),
        (422, ProviderRejected),
        (401, BackendFailed),
        (404, BackendFailed),
        (429, RateLimited),
        (500, BackendFailed),
        (503, BackendFailed),
        (529, BackendFailed),
    ],
)
async def test_a_refusal_keeps_its_status_and_costs_nothing(
    library: Library, provider: str, status: int, error: type[TollkeeperError], streamed: bool
) -> None:
    verb = refuse(status, f"no, {KEY}", headers=[("retry-after", "17")])
    refused = _check(
        await _outcome(library, provider, verb, streamed=streamed), error, charged=False
    )
    if isinstance(refused, RateLimited):
        assert refused.retry_after_s == 17
    if isinstance(refused, ProviderRejected):
        assert "no, [removed]" in refused.message


@BOTH
@EACH
@pytest.mark.parametrize("verb", [refuse(502), refuse(504)], ids=["502", "504"])
async def test_a_status_of_something_in_between_may_have_run(
    library: Library, provider: str, verb: Verb, streamed: bool
) -> None:
    _check(await _outcome(library, provider, verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
@EACH
@pytest.mark.parametrize("verb", [reset_before_headers(), close_before_headers()])
async def test_a_connection_that_ends_before_the_answer_may_have_run(
    library: Library, provider: str, verb: Verb, streamed: bool
) -> None:
    _check(await _outcome(library, provider, verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
@EACH
async def test_a_provider_that_cannot_be_reached_has_run_nothing(
    library: Library, provider: str, streamed: bool
) -> None:
    upstream = library.upstreams[provider]
    await upstream.__aexit__()
    try:
        async with library.backend(provider) as backend:
            outcome = await make(backend, make_call(streamed=streamed), deadline_s=60)
        _check(outcome, BackendFailed, charged=False)
    finally:
        await upstream.__aenter__()


@EACH
async def test_a_stream_that_is_cut_is_charged_as_far_as_it_came(
    library: Library, provider: str
) -> None:
    async def cut(peer: Peer) -> None:
        await peer.send_head()
        for record in PROTOCOLS[provider].begun():
            await peer.send_chunk(record)
        # A reset throws away what the client has not read yet: it gets the time to.
        await asyncio.sleep(0.3)
        peer.reset()

    outcome = await _outcome(library, provider, cut, streamed=True)
    _check(outcome, BackendFailed, charged=True, text="0 1 ")


@EACH
async def test_a_stream_that_only_stops_is_no_whole_answer(library: Library, provider: str) -> None:
    verb = streamed_records(PROTOCOLS[provider].begun())
    outcome = await _outcome(library, provider, verb, streamed=True)
    _check(outcome, BackendFailed, charged=True, text="0 1 ")


async def test_an_error_in_the_place_of_an_answer_costs_nothing(library: Library) -> None:
    verb = streamed_records([begin(), error_record("overloaded_error")])
    outcome = await _outcome(library, "anthropic", verb, streamed=True)
    assert isinstance(outcome.error, BackendFailed)
    assert not outcome.error.charged


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai", completion("Hi", usage=None)),
        ("gemini", gemini_answer(text_part("Hi"), usage=None)),
        ("cohere", cohere_answer("Hi", usage=None)),
    ],
)
async def test_no_usage_is_no_report(library: Library, provider: str, body: Any) -> None:
    """For some of them the library writes zeros, which would be an answer for nothing."""
    outcome = await _outcome(library, provider, answer(body))
    outcome.check_complete()
    assert (outcome.text(), outcome.reports) == ("Hi", [])


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("anthropic", whole_message(usage=None)),
        ("mistral", completion(usage=None)),
        ("openai", {"no": "answer"}),
        ("gemini", b"{"),
        ("cohere", b"[]"),
    ],
)
async def test_a_200_that_the_library_cannot_read_may_have_run(
    library: Library, provider: str, body: Any
) -> None:
    _check(await _outcome(library, provider, answer(body)), BackendFailed, charged=True)


@BOTH
@EACH
async def test_a_call_that_is_given_up_ends_at_the_provider(
    library: Library, provider: str, streamed: bool
) -> None:
    upstream = library.play(provider, hang())
    async with library.backend(provider) as backend:
        calling = asyncio.create_task(make(backend, make_call(streamed=streamed), deadline_s=60))
        await until(lambda: upstream.under_way == 1)
        calling.cancel()
        await asyncio.wait({calling})
        await until(lambda: upstream.under_way == 0)


@EACH
async def test_a_stream_that_is_given_up_ends_at_the_provider(
    library: Library, provider: str
) -> None:
    async def go_on(peer: Peer) -> None:
        await peer.send_head()
        for record in PROTOCOLS[provider].begun():
            await peer.send_chunk(record)
        await peer.until_left()

    upstream = library.play(provider, go_on)
    async with library.backend(provider) as backend:
        deadline = asyncio.get_running_loop().time() + 60
        async with backend.open(make_call(streamed=True), deadline=deadline) as answering:
            await anext(answering.batches)
            assert upstream.under_way == 1
        await until(lambda: upstream.under_way == 0)


@BOTH
@EACH
async def test_the_deadline_ends_the_call_at_the_provider(
    library: Library, provider: str, streamed: bool
) -> None:
    outcome = await _outcome(library, provider, hang(), streamed=streamed, deadline_s=1.0)
    _check(outcome, DeadlineExceeded, charged=True)
    await until(lambda: library.upstreams[provider].under_way == 0)


@BOTH
@pytest.mark.parametrize(
    ("provider", "name"),
    [(provider, name) for provider in PROVIDERS for name in PROTOCOLS[provider].refused],
)
async def test_what_the_library_cannot_do_is_named_and_not_sent(
    library: Library, provider: str, name: str, streamed: bool
) -> None:
    upstream = library.play(provider)
    before = len(upstream.requests)
    fields = {name: PROTOCOLS[provider].refused[name]}
    async with library.backend(provider) as backend:
        outcome = await make(backend, make_call(streamed=streamed, **fields), deadline_s=60)
    error = _check(outcome, OptionUnsupported, charged=False)
    assert (error.param, len(upstream.requests)) == (name, before)


async def test_a_request_that_the_library_cannot_convert_is_not_charged(library: Library) -> None:
    """Cohere's form has no tool result without the call of the tool."""
    upstream = library.play("cohere")
    before = len(upstream.requests)
    messages = [{"role": "tool", "tool_call_id": "c1", "content": "wet"}]
    async with library.backend("cohere") as backend:
        outcome = await make(backend, make_call(messages=messages), deadline_s=60)
    _check(outcome, ProviderRejected, charged=False)
    assert len(upstream.requests) == before


async def test_marks_of_caches_and_hints_do_not_reach_the_provider(library: Library) -> None:
    """Gemini's part of the library would make a cache of its own by them, which costs money."""
    marked = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": marked}]
    call = make_call(messages=messages, user="caller", metadata={"a": "b"}, prompt_cache_key="k")
    upstream = library.play("gemini")
    before = len(upstream.requests)
    async with library.backend("gemini") as backend:
        (await make(backend, call, deadline_s=60)).check_complete()
    (request,) = upstream.requests[before:]
    assert b"ephemeral" not in request.body
    assert b"caller" not in request.body


async def test_n_completions_are_as_many_calls(library: Library) -> None:
    upstream = library.play("cohere")
    before = len(upstream.requests)
    async with library.backend("cohere") as backend:
        (await make(backend, make_call(choices=3), deadline_s=60)).check_complete(choices=3)
    assert len(upstream.requests) == before + 3


async def test_a_changed_key_file_changes_the_key(library: Library) -> None:
    library.key_file.write_text("another-key\n")
    try:
        (await _outcome(library, "cohere")).check_complete()
        assert library.upstreams["cohere"].requests[-1].headers["authorization"] == (
            "Bearer another-key"
        )
    finally:
        library.key_file.write_text(f"{KEY}\n")
    (await _outcome(library, "cohere")).check_complete()
    assert library.upstreams["cohere"].requests[-1].headers["authorization"] == f"Bearer {KEY}"


async def test_a_provider_that_cannot_be_served_is_refused_with_the_reason(
    library: Library,
) -> None:
    report = library.bridge.report
    assert report is not None
    assert report.library.startswith("any-llm-sdk ")
    assert set(report.refused) == {declared["name"] for declared in _REFUSED}
    assert "the library has no nobody; it has: " in report.refused["unknown"]
    assert "cannot switch off the retries of huggingface" in report.refused["retrying"]
    assert "pip install 'any-llm-sdk[groq]'" in report.refused["lacking"]
    async with library.backend("unknown") as backend:
        outcome = await make(backend, make_call(), deadline_s=60)
    _check(outcome, BackendFailed, charged=False)


async def test_a_bridge_that_is_killed_leaves_its_calls_unknown_and_comes_back(
    library: Library,
) -> None:
    upstream = library.play("cohere", hang())
    address, pid = library.address, library.bridge.pid
    assert pid is not None
    async with library.backend("cohere") as backend:
        calling = asyncio.create_task(make(backend, make_call(), deadline_s=60))
        await until(lambda: upstream.under_way == 1)
        os.kill(pid, signal.SIGKILL)
        _check(await calling, BackendFailed, charged=True)
        await until(lambda: library.bridge.pid not in (pid, None), within_s=60)
        assert await library.bridge.wait_ready(300)
        assert library.address == address
        library.play("cohere")
        (await make(backend, make_call(), deadline_s=60)).check_complete()


async def test_no_more_calls_at_once_than_allowed(tmp_path: Path) -> None:
    async with running_library(tmp_path, library={"calls": 1}) as small:
        upstream = small.play("openai", hang())
        async with small.backend("openai") as backend:
            first = asyncio.create_task(make(backend, make_call(), deadline_s=60))
            await until(lambda: upstream.under_way == 1)
            second = await make(backend, make_call(), deadline_s=60)
            _check(second, BackendFailed, charged=False)
            first.cancel()
            await asyncio.wait({first})
