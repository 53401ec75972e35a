"""Tests that large requests are processed in threads, so that the event loop can serve other calls."""

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.scripted_gateway import MODEL
from tests.support.upstream import chat
from tollkeeper.api.chat import handler as chat_handler
from tollkeeper.api.messages import handler as messages_handler
from tollkeeper.api.responses import call as responses_call
from tollkeeper.api.responses import truncation
from tollkeeper.backends.chat import wire as chat_wire
from tollkeeper.domain import prompt_size
from tollkeeper.domain.prompt import Prompt
from tollkeeper.services.calls import inference

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
