"""Tests that large requests, and large images and log-probabilities in answers, are processed in threads, so
that the event loop can serve other calls."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import read_events, respond
from tests.support.scripted_gateway import MODEL
from tests.support.upstream import (
    DONE,
    Peer,
    Verb,
    answer,
    chat,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)
from tollkeeper.calls import inference, response_gate
from tollkeeper.core import prompt_size
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.prompt import Prompt
from tollkeeper.core.runtime import large_requests
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.faces.chat import handler as chat_handler
from tollkeeper.faces.messages import handler as messages_handler
from tollkeeper.faces.responses import call as responses_call
from tollkeeper.faces.responses import output, truncation
from tollkeeper.providers.chat import wire as chat_wire

# The modules in which calls use the thread for policies.
_JUDGED_IN = (inference, response_gate, large_requests)
# Few bytes, but so many messages that a loop over them takes a tenth of a second.
_MANY = [{"role": "user", "content": "a"}] * 3000
_LONG = [{"role": "user", "content": "lorem ipsum " * 20_000}]
_FEW = [{"role": "user", "content": "a"}] * 3


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    model = {"context_length": 1_000_000}
    async with judged_gateway(data_dir, conninfo, model=model) as running:
        yield running


class Threads:
    """Records, by function name, whether each call of a function ran outside the main thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.beside: dict[str, set[bool]] = {}

    def note(self, owner: ModuleType | type, name: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            is_main = threading.current_thread() is threading.main_thread()
            self.beside.setdefault(name, set()).add(not is_main)
            return work(*arguments, **named)

        self._monkeypatch.setattr(owner, name, noted)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


_SIZES = pytest.mark.parametrize(
    ("messages", "beside"),
    [(_FEW, False), (_MANY, True), (_LONG, True)],
    ids=["small", "many messages", "long text"],
)


@_SIZES
@pytest.mark.parametrize("face", ["chat", "responses"])
async def test_a_call(
    shared: JudgedGateway, threads: Threads, face: str, messages: Any, beside: bool
) -> None:
    judged = await shared.for_next_test()
    judged.model.play(chat())
    await judged.publish(direction="request")
    for owner, name in (
        (chat_handler, "read_prompt"),
        (responses_call, "read_prompt"),
        (inference, "transcript"),
        (prompt_size, "measure_text"),
        (chat_wire, "_encode"),
    ):
        threads.note(owner, name)
    path, field = ("chat/completions", "messages") if face == "chat" else ("responses", "input")
    found = await judged.scripted.gateway.client.post(
        f"/v1/{path}",
        json={"model": MODEL, field: messages},
        headers=judged.scripted.tenant.as_customer,
    )
    assert found.status_code == 200, found.text
    # The monitoring policy needs the transcript, perhaps after the answer.
    await judged.entry(found)
    # Ignore this function: it also encodes the judge's requests, which are small.
    del threads.beside["_encode"]
    assert threads.beside == {
        name: {beside} for name in ("read_prompt", "transcript", "measure_text")
    }


@_SIZES
async def test_a_request_for_the_backend(
    shared: JudgedGateway, threads: Threads, messages: Any, beside: bool
) -> None:
    judged = await shared.for_next_test()
    judged.model.play(chat())
    threads.note(chat_wire, "_encode")
    assert (await judged.scripted.chat(messages=messages)).status_code == 200
    assert threads.beside == {"_encode": {beside}}


@_SIZES
async def test_a_count_of_tokens(
    shared: JudgedGateway, threads: Threads, messages: Any, beside: bool
) -> None:
    judged = await shared.for_next_test()
    threads.note(messages_handler, "read_counted_prompt")
    found = await judged.scripted.gateway.client.post(
        "/v1/messages/count_tokens",
        json={"model": MODEL, "messages": messages},
        headers=judged.scripted.tenant.as_customer,
    )
    assert found.status_code == 200, found.text
    assert threads.beside == {"read_counted_prompt": {beside}}


async def test_truncation_uses_the_thread_in_which_organizations_take_turns(
    shared: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads at once would leave the event loop only a small share of the time."""
    judged = await shared.for_next_test()
    used: set[str] = set()

    def noted(prompt: Prompt) -> prompt_size.PromptSize:
        used.add(threading.current_thread().name)
        return prompt_size.measure_prompt(prompt)

    monkeypatch.setattr(truncation, "measure_prompt", noted)
    said = [{"role": "user", "content": "7" * 150_000}] * 8
    found = await judged.scripted.gateway.client.post(
        "/v1/responses",
        json={"model": MODEL, "input": said, "truncation": "auto"},
        headers=judged.scripted.tenant.as_customer,
    )
    assert found.status_code == 200, found.text
    assert 1 < len(judged.model.requests[-1].json["messages"]) < len(said)
    assert used == {"large-requests_0"}


async def test_an_error_comes_from_beside_as_from_anywhere(shared: JudgedGateway) -> None:
    judged = await shared.for_next_test()
    wrong = [*_MANY, {"role": "user", "content": [{"type": "telepathy"}]}]
    found = await judged.scripted.chat(messages=wrong)
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "messages[3000].content[0].type"


def _token(text: str, **fields: Any) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": list(text.encode()), **fields}


def _answer_with(logprobs: list[dict[str, Any]]) -> Verb:
    """Answers "Hello" with the log-probabilities, which are in one chunk if the answer is streamed."""
    whole, piece = completion("Hello"), chunk("Hello")
    for one in (whole, piece):
        one["choices"][0]["logprobs"] = {"content": logprobs}
    streamed = stream([sse(piece), sse(chunk(finish="stop")), sse(usage_chunk()), DONE])

    async def verb(peer: Peer) -> None:
        await (streamed if peer.request.json.get("stream") else answer(whole))(peer)

    return verb


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("tokens", "beside"), [(8, False), (400, True)], ids=["few", "many"])
async def test_log_probabilities(
    shared: JudgedGateway, threads: Threads, streamed: bool, tokens: int, beside: bool
) -> None:
    judged = await shared.for_next_test()
    # Only the alternatives say "bomb", letter by letter.
    logprobs = [
        _token(" lorem", top_logprobs=[_token(" lorem"), _token("bomb"[at % 4])])
        for at in range(tokens)
    ]
    judged.model.play(_answer_with(logprobs))
    threads.note(response_gate, "LogprobText")
    threads.note(output, "_flat_logprobs")
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": streamed}
    await judged.enforce("war", direction="response")
    found = await respond(judged.scripted, **asked)
    assert found.status_code == 200, found.text
    result = read_events(found.text)[0][-1]["response"] if streamed else found.json()
    assert result["output"][0]["content"][0]["logprobs"] == logprobs
    policy = await judged.enforce("bomb", direction="response")
    assert_denied(await respond(judged.scripted, **asked), policy, "response")
    assert threads.beside == {name: {beside} for name in ("LogprobText", "_flat_logprobs")}


@pytest.mark.parametrize(
    ("size", "beside"), [(1000, False), (30_000, True)], ids=["small", "large"]
)
async def test_an_image_in_an_answer(
    shared: JudgedGateway, threads: Threads, size: int, beside: bool
) -> None:
    judged = await shared.for_next_test()
    svg = f"<svg><!--{'x' * size}--><text>bomb</text></svg>"
    url = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    body = completion("Look.")
    body["choices"][0]["message"]["images"] = [{"type": "image_url", "image_url": {"url": url}}]
    judged.model.play(answer(body))
    threads.note(response_gate, "read_media")
    await judged.enforce("war", direction="response")
    assert (await judged.chat()).status_code == 200
    policy = await judged.enforce("bomb", direction="response")
    assert_denied(await judged.chat(), policy, "response")
    assert threads.beside == {"read_media": {beside}}


async def test_monitoring_does_not_make_a_call_wait_for_the_thread(
    shared: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = await shared.for_next_test()
    thread_is_free = asyncio.Event()

    async def run_later(*arguments: Any) -> Any:
        await thread_is_free.wait()
        return await run_in_thread(*arguments)

    for module in _JUDGED_IN:
        monkeypatch.setattr(module, "run_in_thread", run_later)
    # Only the alternatives say "bomb". Its first half is in a large piece, its second half in a small one.
    pieces = [chunk("Hello"), chunk("!"), chunk(finish="stop"), usage_chunk()]
    for piece, words in zip(pieces, (["lorem"] * 400 + ["bo"], ["mb"]), strict=False):
        logprobs = [_token("a", top_logprobs=[_token("a"), _token(word)]) for word in words]
        piece["choices"][0]["logprobs"] = {"content": logprobs}
    judged.model.play(stream([*map(sse, pieces), DONE]))
    await judged.publish("bomb", direction="both")
    found = await judged.chat(messages=[*_MANY, {"role": "user", "content": "bomb"}], stream=True)
    assert found.status_code == 200
    assert "Hello" in found.text
    assert judged.judge.asked == []
    thread_is_free.set()
    verdicts = (await judged.entry(found)).verdicts
    assert {(verdict.direction, verdict.matched) for verdict in verdicts} == {
        ("request", True),
        ("response", True),
    }
    contexts = [asked.context for asked in judged.judge.asked if asked.context is not None]
    assert contexts
    assert all(context.endswith("bomb") for context in contexts)


@pytest.mark.parametrize(
    ("messages", "missing"),
    [(_MANY, {"request", "response"}), (_FEW, {"response"})],
    ids=["large request", "small request"],
)
@pytest.mark.parametrize(("mode", "status"), [("monitoring", 200), ("enforcing", 503)])
async def test_a_busy_thread_fails_only_calls_that_wait_for_a_verdict(
    shared: JudgedGateway,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    status: int,
    messages: Any,
    missing: set[str],
) -> None:
    judged = await shared.for_next_test()

    async def is_busy(*_: Any) -> Any:
        raise Unavailable("Too many large requests are in progress; try again.", retry_after_s=1)

    for module in _JUDGED_IN:
        monkeypatch.setattr(module, "run_in_thread", is_busy)
    judged.model.play(_answer_with([_token("lorem")] * 1000))
    await judged.publish(mode=mode, direction="both")
    found = await judged.chat(messages=messages)
    assert found.status_code == status, found.text
    verdicts = (await judged.entry(found)).verdicts
    assert mode == "enforcing" or missing == {
        verdict.direction for verdict in verdicts if verdict.probability_basis_points is None
    }
