"""Tests Anthropic's SDKs for Python and Node, old and new: messages, token counts, and a policy that
denies an answer in its middle."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.clients.conftest import node_client, python_client
from tests.journeys.clients.programs import ClientLogin, PythonClient
from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, scripted_gateway
from tests.support.token_counts import count, counts
from tests.support.upstream import USAGE, Upstream, answer, chat_records, completion, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The newest SDK is installed in the tests' own environment.
_OWN_PYTHON = Path(sys.executable)


@pytest.fixture
async def counting(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway whose upstream has a tokenizer, which answers every count with 42."""
    async with (
        Upstream(counts(42)) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, backend={"tokenize_path": "/tokenize"}
        ) as running,
    ):
        yield running


async def test_count_tokens(older_anthropic: PythonClient, counting: ScriptedGateway) -> None:
    login = ClientLogin(counting.gateway, counting.tenant, MODEL)
    told = await older_anthropic.run("count_tokens.py", login)
    assert told["counted"] == told["beta"] == 42
    asked = [request.json for request in counting.upstream.requests]
    assert [[message["role"] for message in one["messages"]] for one in asked] == [
        ["system", "user"],
        ["user"],
    ]
    assert asked[0]["tools"][0]["function"]["name"] == "look"
    seen = {
        name: (told[name]["kind"], told[name]["status"], told[name]["type"], told[name]["param"])
        for name in ("unknown", "empty", "stranger")
    }
    assert seen == {
        "unknown": ("NotFoundError", 404, "not_found_error", "model"),
        "empty": ("BadRequestError", 400, "invalid_request_error", "messages"),
        "stranger": ("AuthenticationError", 401, "authentication_error", None),
    }
    assert len({told[name]["request_id"] for name in seen}) == len(seen)
    assert await counting.entries() == []


Sdk = Callable[[str, ClientLogin], Awaitable[Any]]


@pytest.fixture(scope="session", params=["python 0", "python 1", "python", "node 0", "node"])
async def sdk(request: pytest.FixtureRequest) -> Sdk:
    """Returns a function that runs a script with the oldest, an older or the newest SDK of a language."""
    language, _, major = request.param.partition(" ")
    if language == "python":
        python = await python_client(f"anthropic-{major}") if major else PythonClient(_OWN_PYTHON)
        return lambda script, login: python.run(f"{script}.py", login)
    node = await node_client("anthropic_sdk")
    package = "anthropic-old" if major else "@anthropic-ai/sdk"
    return lambda script, login: node.run(f"{script}.mjs", login, package)


async def test_messages(sdk: Sdk, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(look_then_tell())
    told = await sdk("messages", ClientLogin(scripted.gateway, scripted.tenant, MODEL))
    assert told.pop("counted") == (await count(scripted)).json()["input_tokens"]
    tokens = 3 * USAGE["completion_tokens"]
    text = "I saw room 0 and room 1."
    expected = {
        "loop": {"text": text, "stop_reason": "end_turn", "tokens": tokens},
        "unknown": {"kind": "NotFoundError", "status": 404, "param": "model"},
        "too_long": {"kind": "BadRequestError", "status": 400, "param": "max_tokens"},
        "stranger": {"kind": "AuthenticationError", "status": 401, "param": None},
    }
    assert told == {"whole": expected, "streamed": expected}
    assert (await scripted.balance())["settled"] == 6 * COST


@pytest.fixture(scope="module")
async def shared_judging(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir, conninfo, judge={"segment_characters": 10}, extensions={"messages": True}
    ) as running:
        yield running


async def test_a_policy_denies_in_the_middle_of_a_stream(
    sdk: Sdk, shared_judging: JudgedGateway
) -> None:
    judging = await shared_judging.for_next_test()
    scripted = judging.scripted
    await judging.enforce("bomb", direction="response")
    pieces = ("This is fine. ", "This is a bomb. ", "More.")
    whole = answer(completion("".join(pieces)))
    judging.model.play(whole, stream(chat_records(pieces)))
    told = await sdk("denied", ClientLogin(scripted.gateway, scripted.tenant, MODEL))
    assert told == {
        "whole": {"text": "", "denied": True},
        "streamed": {"text": "This is fine. ", "denied": True},
    }
    assert [entry.status for entry in await scripted.entries()] == ["settled"] * 2
