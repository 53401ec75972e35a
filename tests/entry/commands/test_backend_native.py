"""Tests `tollkeeper backend try` with backends that have a native wire."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.program import Program, write_config
from tests.support.upstream import Peer, Upstream, Verb
from tests.support.upstream_converse import converse, invoke, use_block
from tests.support.upstream_gemini import call_part, generate
from tests.support.upstream_messages import tool_block

_KEY = "key-of-the-provider"
_SETTINGS = """
[[backends]]
name = "tried"
preset = "{preset}"
urls = ["{url}"]
{more}

[[models]]
id = "example/model"
backend = "tried"
upstream_model = "upstream"
context_length = 4096
max_output_length = 1024
supported_features = ["tools"]
pricing = {{ prompt = "0.000003", completion = "0.000015" }}
"""


@dataclass(frozen=True)
class Tried:
    preset: str
    variables: dict[str, str]
    # The header with the credential, the beginning of its value, and the displayed description.
    header: str
    begins: str
    credential: str
    answers: Verb
    calls: Verb
    more: str = ""


_AWS = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": _KEY, "AWS_REGION": "eu-west-1"}
_BEARER = {"AWS_BEARER_TOKEN_BEDROCK": _KEY}
_CONVERSE = (
    converse(),
    converse(use_block("c1", "weather", place="Paris"), stop_reason="tool_use"),
)
_INVOKE = (invoke(), invoke(tool_block("c1", "weather", place="Paris"), stop_reason="tool_use"))
_GEMINI = (generate(), generate(call_part("c1", "weather", place="Paris")))
_SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA1/"
TRIED = {
    "gemini": Tried(
        "gemini",
        {"GEMINI_API_KEY": _KEY},
        "x-goog-api-key",
        _KEY,
        "x-goog-api-key from $GEMINI_API_KEY",
        *_GEMINI,
    ),
    "bedrock": Tried(
        "bedrock",
        _BEARER,
        "authorization",
        f"Bearer {_KEY}",
        "bearer from $AWS_BEARER_TOKEN_BEDROCK",
        *_CONVERSE,
    ),
    "bedrock signed": Tried(
        "bedrock",
        _AWS,
        "authorization",
        _SIGNED,
        "sigv4: the keys that the AWS library finds",
        *_CONVERSE,
        more='credential = "sigv4"',
    ),
    "bedrock-claude signed": Tried(
        "bedrock-claude",
        _AWS,
        "authorization",
        _SIGNED,
        "sigv4: the keys that the AWS library finds",
        *_INVOKE,
        more='credential = "sigv4"',
    ),
}


def _answering(tried: Tried) -> Verb:
    """Calls the tool if the request contains one."""

    async def verb(peer: Peer) -> None:
        await (
            tried.calls
            if b"toolSpec" in peer.request.body or b'"tools"' in peer.request.body
            else tried.answers
        )(peer)

    return verb


@pytest.mark.parametrize("name", TRIED)
async def test_what_works_and_what_it_cost(
    program: Program, tmp_path: Path, data_dir: Path, name: str
) -> None:
    tried = TRIED[name]
    async with Upstream(_answering(tried)) as upstream:
        settings = _SETTINGS.format(preset=tried.preset, url=upstream.url, more=tried.more)
        config = write_config(tmp_path, data_dir, more=settings)
        made = program.with_config(config).with_environment(**tried.variables)
        outcome = await asyncio.to_thread(made.run, "backend", "try", "tried", "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    verdicts = {row["check"]: row["verdict"] for row in document["data"]}
    assert verdicts == dict.fromkeys(("answer", "stream", "tools", "count"), "works")
    # There are three answers, each with 12 prompt tokens and 5 completion tokens.
    assert (document["ok"], document["cost_usd"]) == (True, "0.000333")
    assert document["credential"] == tried.credential
    for request in upstream.requests:
        assert request.headers[tried.header].startswith(tried.begins)
    assert _KEY not in outcome.out
