"""Tests the unmodified OpenAI SDK for Node."""

import pytest

from tests.journeys.clients.programs import ClientLogin, NodeClient
from tests.support.responses_answers import both, look_then_tell
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.upstream import chat, end_after

# The first test installs the SDK.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def login(scripted: ScriptedGateway) -> ClientLogin:
    return ClientLogin(scripted.gateway, scripted.tenant, MODEL)


async def test_create(node: NodeClient, scripted: ScriptedGateway, login: ClientLogin) -> None:
    told = await node.run("create.mjs", login)
    assert told["text"] == "Hello"
    assert told["status"] == "completed"
    assert told["usage"]["input_tokens"] == 7
    assert told["usage"]["output_tokens"] == 3
    roles = [message["role"] for message in scripted.upstream.requests[-1].json["messages"]]
    assert roles == ["system", "user"]
    entry = await scripted.entry(told["requestId"])
    assert entry is not None
    assert (entry.status, entry.cost) == ("settled", COST)


async def test_stream(node: NodeClient, scripted: ScriptedGateway, login: ClientLogin) -> None:
    told = await node.run("stream.mjs", login)
    assert told["types"][:2] == ["response.created", "response.in_progress"]
    assert told["types"][-1] == "response.completed"
    assert told["deltas"] == ["Hel", "lo"]
    assert told["heard"] == ["Hel", "Hello"]
    assert (told["final"], told["status"]) == ("Hello", "completed")
    assert [usage["total_tokens"] for usage in told["usage"]] == [10, 10]
    assert (await scripted.balance())["settled"] == 2 * COST


async def test_parse(node: NodeClient, scripted: ScriptedGateway, login: ClientLogin) -> None:
    scripted.upstream.play(both({"content": '{"name": "Castle", "rooms": 7}'}))
    told = await node.run("parse.mjs", login)
    castle = {"name": "Castle", "rooms": 7}
    assert told == {"parsed": castle, "streamed": castle}
    wanted = scripted.upstream.requests[-1].json["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["strict"] is True
    assert wanted["json_schema"]["schema"]["required"] == ["name", "rooms"]


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_tools_over_several_turns(
    node: NodeClient, scripted: ScriptedGateway, login: ClientLogin, way: str
) -> None:
    scripted.upstream.play(look_then_tell())
    told = await node.run("tools.mjs", login, way)
    assert told["places"] == ["room 0", "room 1"]
    assert told["text"] == "I saw a room 0 and a room 1."
    assert told["farewell"] == "completed"
    sent = scripted.upstream.requests[-1].json
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["user", *("assistant", "tool") * 2, "assistant", "user"]
    assert sent["tools"][0]["function"]["name"] == "look"
    assert (await scripted.balance())["settled"] == 4 * COST


@pytest.mark.smoke
async def test_chat(node: NodeClient, scripted: ScriptedGateway, login: ClientLogin) -> None:
    scripted.upstream.play(chat(), chat(), look_then_tell())
    told = await node.run("chat.mjs", login)
    assert told["whole"] == told["streamed"] == "Hello"
    assert told["usage"]["total_tokens"] == 10
    assert told["places"] == ["room 0", "room 1"]
    assert told["looped"] == "I saw a room 0 and a room 1."
    assert (await scripted.balance())["settled"] == 5 * COST


async def test_refusals_are_the_sdks_errors(
    node: NodeClient, scripted: ScriptedGateway, login: ClientLogin
) -> None:
    before = len(scripted.upstream.requests)
    told = await node.run("errors.mjs", login)
    seen = {
        name: (error["kind"], error["status"], error["code"], error["param"])
        for name, error in told.items()
    }
    assert seen == {
        "stranger": ("AuthenticationError", 401, "invalid_api_key", None),
        "stored": ("BadRequestError", 400, "invalid_request", "store"),
        "previous": ("BadRequestError", 400, "invalid_request", "previous_response_id"),
        "unknown": ("NotFoundError", 404, "model_not_found", "model"),
        "chat": ("BadRequestError", 400, "invalid_request", "messages"),
    }
    assert len({error["requestID"] for error in told.values()}) == len(told)
    assert len(scripted.upstream.requests) == before
    assert await scripted.entries() == []


async def test_streams_that_break(
    node: NodeClient, scripted: ScriptedGateway, login: ClientLogin
) -> None:
    scripted.upstream.play(end_after(2))
    told = await node.run("broken.mjs", login)
    assert told["types"][0] == "response.created"
    assert told["types"][-1] == "response.failed"
    assert "response.completed" not in told["types"]
    assert told["failure"]["code"] == "server_error"
    assert told["chat"]["text"] == "0 1 "
    assert told["chat"]["error"]["kind"] == "APIError"
    statuses = [entry.status for entry in await scripted.entries()]
    assert statuses == ["settled", "settled"]
