"""Tests `tollkeeper backend try`, and the preset that `doctor` shows."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import Outcome, Program, write_config
from tests.support.upstream import USAGE, Peer, Upstream, Verb, chat, unused_url
from tests.support.upstream_messages import message, refuse_message, tool_block
from tollkeeper.core.money import usd_from_picousd

_MODEL = """
[[models]]
id = "example/claude"
backend = "claude"
upstream_model = "claude-sonnet-5"
context_length = 4096
max_output_length = 1024
supported_features = ["tools"]
pricing = { prompt = "0.000003", completion = "0.000015" }
"""


def _claude(url: str, *, alternatives: str = "") -> str:
    return f"""
[[backends]]
name = "claude"
preset = "anthropic"
urls = ["{url}"]
{_MODEL}{alternatives}
"""


def _answering() -> Verb:
    """Calls the tool if the request contains one."""

    async def verb(peer: Peer) -> None:
        body = peer.request.json
        if "tools" in body and not peer.request.path.endswith("count_tokens"):
            use = tool_block("toolu_1", "weather", place="Paris")
            await message(use, stop_reason="tool_use")(peer)
        else:
            await message()(peer)

    return verb


@pytest.fixture
def with_key(program: Program, tmp_path: Path, data_dir: Path) -> Any:
    """Returns a function that builds a program with the given settings and the provider's key."""

    def make(more: str) -> Program:
        config = write_config(tmp_path, data_dir, more=more)
        return program.with_config(config).with_environment(ANTHROPIC_API_KEY="key-of-anthropic")

    return make


async def _run(program: Program, *arguments: str) -> Outcome:
    return await asyncio.to_thread(program.run, *arguments)


async def test_what_works_and_what_it_cost(with_key: Any) -> None:
    async with Upstream(_answering()) as upstream:
        program = with_key(_claude(upstream.url))
        outcome = await _run(program, "backend", "try", "claude", "--json")
        shown = await _run(program, "backend", "try", "claude", "--model", "example/claude")
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    rows = {row["check"]: row for row in document["data"]}
    assert {name: row["verdict"] for name, row in rows.items()} == dict.fromkeys(
        ("answer", "stream", "tools", "count"), "works"
    )
    # Each answer has 12 prompt tokens and 5 completion tokens. The count is free.
    assert {row["cost_usd"] for row in rows.values()} == {"0.000111", "0"}
    assert (document["ok"], document["model"], document["cost_usd"]) == (
        True,
        "example/claude",
        "0.000333",
    )
    assert "0.000333 USD by the model's prices" in " ".join(shown.out.split())
    for request in upstream.requests:
        assert request.headers["x-api-key"] == "key-of-anthropic"
    assert "key-of-anthropic" not in outcome.out + shown.out


async def test_what_fails(with_key: Any) -> None:
    refused = refuse_message(401, "authentication_error", "invalid x-api-key")
    async with Upstream(refused) as upstream:
        outcome = await _run(with_key(_claude(upstream.url)), "backend", "try", "claude", "--json")
    assert outcome.code == 1
    rows = {row["check"]: row for row in json.loads(outcome.out)["data"]}
    assert {row["verdict"] for row in rows.values()} == {"fails"}
    assert "401" in rows["answer"]["detail"]
    assert "The backend claude fails at: answer, stream, tools, count." in outcome.err


async def test_a_model_of_several_backends_is_tried_on_the_one_that_is_named(
    with_key: Any,
) -> None:
    """The price of that backend is used, and the secrets of the other backends are not needed."""
    alternative = """
[[models.alternatives]]
backend = "near"
upstream_model = "llama"
pricing = { prompt = "0.000001", completion = "0.000001" }
[[backends]]
name = "near"
preset = "ollama"
urls = ["%s"]
"""
    async with Upstream(chat()) as upstream:
        more = _claude(unused_url(), alternatives=alternative % upstream.url)
        outcome = await _run(with_key(more), "backend", "try", "near", "--json")
    rows = {row["check"]: row for row in json.loads(outcome.out)["data"]}
    assert (rows["answer"]["verdict"], rows["count"]["verdict"]) == ("works", "not offered")
    assert rows["tools"]["detail"].startswith("the model did not call the tool")
    assert upstream.requests[0].json["model"] == "llama"
    assert upstream.requests[0].json["max_tokens"] == 512
    tokens = USAGE["prompt_tokens"] + USAGE["completion_tokens"]
    assert rows["answer"]["cost_usd"] == usd_from_picousd(tokens * 1_000_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "There is no backend 'nobody'; there are: cluster, claude."),
        (["claude", "--model", "example/none"], "does not serve a model 'example/none'"),
    ],
)
async def test_what_cannot_be_tried(with_key: Any, arguments: list[str], said: str) -> None:
    outcome = await _run(with_key(_claude(unused_url())), "backend", "try", *arguments)
    assert outcome.code == 1
    assert said in outcome.err


async def test_the_doctor_shows_what_a_preset_stands_for(with_key: Any) -> None:
    async with Upstream(message()) as upstream:
        outcome = await _run(with_key(_claude(upstream.url)), "doctor", "--json")
    rows = {row["name"]: row for row in json.loads(outcome.out)["data"]}
    assert rows["backend claude preset"]["verdict"] == "ok"
    detail = rows["backend claude preset"]["detail"]
    assert detail == (
        "preset anthropic: protocol messages; x-api-key from $ANTHROPIC_API_KEY; "
        "4784 tokens per image"
    )
