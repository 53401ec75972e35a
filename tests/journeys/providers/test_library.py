"""The OpenAI SDK, unmodified, in front of backends that are reached through the library.

JSON and streams, chat and Responses, tools, structured output and what is refused: with the exact
bill of each. The second half runs the whole program, with the commands that show such a backend.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, assert_error, running_gateway
from tests.support.library import (
    KEY,
    PLACES,
    PROTOCOLS,
    PROVIDERS,
    Library,
    library_python,
    origin_of,
    running_library,
)
from tests.support.processes import children_of
from tests.support.program import Program, Serving, serving
from tests.support.scripted_gateway import ScriptedGateway, model_settings
from tests.support.sdks import openai
from tests.support.upstream import Upstream, reset_before_headers
from tests.support.upstream_cohere import cohere
from tests.support.upstream_messages import message

BOTH = pytest.mark.parametrize("streamed", [False, True])
EACH = pytest.mark.parametrize("provider", PROVIDERS)
_PRICES = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375",
    "input_cache_write_1h": "0.000006",
}
_INPUT, _OUTPUT, _READ, _WRITE, _WRITE_1H = 3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000
_WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}


def _model(provider: str) -> dict[str, Any]:
    return model_settings(
        id=f"library/{provider}",
        backend=provider,
        pricing=_PRICES,
        input_modalities=["text", "image"],
    )


@dataclass(frozen=True)
class LibraryGateway:
    library: Library
    gateway: Gateway

    async def for_provider(self, provider: str) -> ScriptedGateway:
        """With a tenant of its own, in front of one provider's server."""
        upstream = self.library.play(provider)
        tenant = await self.gateway.make_tenant()
        made = ScriptedGateway(self.gateway, upstream, tenant, probe_tenant=tenant)
        await made.grant(10**13)
        return made


@pytest.fixture(scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory, data_dir: Path, conninfo: str
) -> AsyncIterator[LibraryGateway]:
    folder = tmp_path_factory.mktemp("library")
    async with running_library(
        folder,
        models=[_model(provider) for provider in PROVIDERS],
        database={"data_dir": data_dir, "pool_size": 8},
        limits={"drain_s": 0, "inference_deadline_s": 120},
    ) as library:
        settings = library.settings
        async with running_gateway(settings, conninfo, bridge=library.address) as gateway:
            yield LibraryGateway(library, gateway)


def _client(scripted: ScriptedGateway) -> openai.AsyncOpenAI:
    base_url, api_key = f"{scripted.gateway.base_url}/v1", scripted.tenant.project_key
    return openai.AsyncOpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=0,
        timeout=120,
        default_headers={"x-caller-secret": "hush"},
    )


async def _ask(
    client: openai.AsyncOpenAI, provider: str, *, streamed: bool, **fields: Any
) -> dict[str, Any]:
    """The message of the answer, assembled by the SDK."""
    asked: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100, **fields}
    model = f"library/{provider}"
    if not streamed:
        whole = await client.chat.completions.create(model=model, **asked)
        choice: dict[str, Any] = whole.choices[0].model_dump(exclude_none=True)
        return choice
    async with client.chat.completions.stream(model=model, **asked) as answering:
        async for _ in answering:
            pass
        done = await answering.get_final_completion()
    return done.choices[0].model_dump(exclude_none=True)


@BOTH
@EACH
async def test_a_chat_program_is_charged_exactly(
    shared: LibraryGateway, provider: str, streamed: bool
) -> None:
    scripted = await shared.for_provider(provider)
    before = len(scripted.upstream.requests)
    async with _client(scripted) as client:
        answered = await _ask(client, provider, streamed=streamed)
    assert (answered["message"]["content"], answered["finish_reason"]) == ("Hello", "stop")
    (request,) = scripted.upstream.requests[before:]
    protocol = PROTOCOLS[provider]
    assert request.headers[protocol.key_header] == protocol.key_prefix + KEY
    assert b"hush" not in request.head
    assert scripted.tenant.project_key.encode() not in request.head
    prompt, cached, completion = protocol.usage
    cost = (prompt - cached) * _INPUT + cached * _READ + completion * _OUTPUT
    assert (await scripted.balance())["settled"] == cost
    (entry,) = await scripted.entries()
    assert (entry.status, entry.cost, entry.estimated) == ("settled", cost, False)


@BOTH
@EACH
async def test_tools_are_called_side_by_side(
    shared: LibraryGateway, provider: str, streamed: bool
) -> None:
    scripted = await shared.for_provider(provider)
    scripted.upstream.play(PROTOCOLS[provider].tools())
    async with _client(scripted) as client:
        answered = await _ask(client, provider, streamed=streamed, tools=[_WEATHER])
    calls = answered["message"]["tool_calls"]
    assert answered["finish_reason"] == "tool_calls"
    arguments = [json.loads(call["function"]["arguments"]) for call in calls]
    assert arguments == [{"place": place} for place in PLACES]
    assert len({call["id"] for call in calls}) == len(PLACES)
    assert (await scripted.entries())[0].status == "settled"


@BOTH
async def test_a_responses_program_reaches_it_too(shared: LibraryGateway, streamed: bool) -> None:
    scripted = await shared.for_provider("cohere")
    async with _client(scripted) as client:
        asked: Any = {"model": "library/cohere", "input": "Hello", "max_output_tokens": 100}
        if streamed:
            async with client.responses.stream(**asked) as answering:
                async for _ in answering:
                    pass
                said = (await answering.get_final_response()).output_text
        else:
            said = (await client.responses.create(**asked)).output_text
    assert said == "Hello"
    assert (await scripted.balance())["settled"] == 8 * _INPUT + 4 * _READ + 5 * _OUTPUT


@BOTH
async def test_cache_writes_are_charged_by_their_lifetime(
    shared: LibraryGateway, streamed: bool
) -> None:
    scripted = await shared.for_provider("anthropic")
    usage = {
        "input_tokens": 12,
        "output_tokens": 5,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
    }
    scripted.upstream.play(message(usage=usage))
    async with _client(scripted) as client:
        await _ask(client, "anthropic", streamed=streamed)
    cost = 12 * _INPUT + 40 * _READ + 60 * _WRITE + 40 * _WRITE_1H + 5 * _OUTPUT
    assert (await scripted.balance())["settled"] == cost


async def test_an_answer_without_usage_is_counted_by_us(shared: LibraryGateway) -> None:
    scripted = await shared.for_provider("cohere")
    scripted.upstream.play(cohere(usage=None))
    async with _client(scripted) as client:
        await _ask(client, "cohere", streamed=False)
    (entry,) = await scripted.entries()
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost > 0


async def test_a_call_that_nobody_knows_of_keeps_its_hold(shared: LibraryGateway) -> None:
    scripted = await shared.for_provider("cohere")
    scripted.upstream.play(reset_before_headers())
    answered = await scripted.chat(model="library/cohere", max_tokens=100)
    assert answered.status_code == 502
    (entry,) = await scripted.entries()
    assert entry.status == "unsettled"
    assert (await scripted.balance())["unsettled"] == entry.hold


async def test_what_the_library_cannot_do_is_501_with_its_name(shared: LibraryGateway) -> None:
    scripted = await shared.for_provider("anthropic")
    before = len(scripted.upstream.requests)
    answered = await scripted.chat(model="library/anthropic", max_tokens=100, seed=7)
    assert_error(answered, 501, "not_implemented", param="seed")
    assert len(scripted.upstream.requests) == before
    balance = await scripted.balance()
    assert (balance["held"], balance["unsettled"], balance["settled"]) == (0, 0, 0)


async def test_no_address_is_passed_on_to_be_fetched(shared: LibraryGateway) -> None:
    """A provider may read addresses of its own storage with the rights of the gateway's key."""
    scripted = await shared.for_provider("gemini")
    before = len(scripted.upstream.requests)
    image = {"type": "image_url", "image_url": {"url": "gs://bucket/secret.png"}}
    answered = await scripted.chat(
        model="library/gemini", max_tokens=100, messages=[{"role": "user", "content": [image]}]
    )
    assert answered.status_code == 400
    assert len(scripted.upstream.requests) == before


# The whole program.


@dataclass(frozen=True)
class LibraryProgram:
    program: Program
    upstream: Upstream


@pytest.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, data_dir: Path, shared_conninfo: str
) -> AsyncIterator[LibraryProgram]:
    """Settings with a backend of Cohere's, whose server is scripted."""
    python = await library_python()
    folder = tmp_path_factory.mktemp("program")
    async with Upstream(cohere()) as upstream:
        (folder / "tollkeeper.toml").write_text(
            f"""
            [server]
            port = 0
            [operator]
            port = 0
            [database]
            data_dir = "{data_dir}"
            [library]
            python = "{python}"
            [[backends]]
            name = "cohere"
            kind = "library"
            provider = "cohere"
            urls = ["{origin_of(upstream)}"]
            api_key_env = "COHERE_KEY_OF_TESTS"
            [[models]]
            id = "library/cohere"
            backend = "cohere"
            upstream_model = "command-a"
            context_length = 4096
            max_output_length = 2048
            supported_features = ["tools"]
            pricing = {{ prompt = "0.000003", completion = "0.000015" }}
            """
        )
        assert shared_conninfo
        environment = {"COHERE_KEY_OF_TESTS": KEY}
        yield LibraryProgram(Program(folder / "tollkeeper.toml", folder, environment), upstream)


async def test_the_doctor_says_how_exact_it_is(served: LibraryProgram) -> None:
    outcome = await asyncio.to_thread(served.program.run, "doctor", "--json")
    findings = {entry["name"]: entry for entry in json.loads(outcome.out)["data"]}
    found = findings["backend cohere"]
    assert found["verdict"] == "warning"
    assert (
        "cohere, bearer from $COHERE_KEY_OF_TESTS, ready: through any-llm-sdk " in found["detail"]
    )
    assert "only as exact as what the library reports" in found["detail"]
    assert "The preset cohere reaches it without the library" in found["detail"]
    assert KEY not in outcome.out + outcome.err


async def test_a_backend_is_tried_with_real_calls(served: LibraryProgram) -> None:
    served.upstream.play(cohere())
    outcome = await asyncio.to_thread(served.program.run, "backend", "try", "cohere", "--json")
    results = {entry["check"]: entry for entry in json.loads(outcome.out)["data"]}
    assert results["answer"]["verdict"] == "works", outcome
    assert results["stream"]["verdict"] == "works", outcome
    assert KEY not in outcome.out + outcome.err


async def test_a_served_gateway_runs_one_bridge_and_ends_it(served: LibraryProgram) -> None:
    served.upstream.play(cohere())
    key = await asyncio.to_thread(_new_key, served.program)
    with serving(served.program, "--workers", "2") as running:
        bridges = await _bridges(running.process)
        assert len(bridges) == 1
        await _until_ready(running)
        async with openai.AsyncOpenAI(
            base_url=f"{running.public}/v1", api_key=key, max_retries=0
        ) as caller:
            answered = await _ask(caller, "cohere", streamed=True)
        assert answered["message"]["content"] == "Hello"
        assert KEY not in " ".join(bridges[0].cmdline())
        log = running.log.read_text()
    assert not bridges[0].is_running()
    assert KEY not in log


def _new_key(program: Program) -> str:
    organization = program.json("organization", "create", "Acme")["id"]
    program.json("credit", "grant", organization, "10")
    project = program.json("project", "create", organization, "app")["id"]
    return str(program.json("project-key", "create", project, "app")["value"])


async def _until_ready(running: Serving) -> None:
    async with httpx2.AsyncClient(timeout=60) as client, asyncio.timeout(300):
        while True:
            said = await client.get(f"{running.operator}/readyz")
            if "ready: through any-llm-sdk" in said.text:
                return
            await asyncio.sleep(0.1)


async def _bridges(process: Any) -> list[Any]:
    async with asyncio.timeout(60):
        while True:
            found = children_of(
                process, lambda line: any("tollkeeper.embedded.bridge" in word for word in line)
            )
            if found:
                return found
            await asyncio.sleep(0.05)
