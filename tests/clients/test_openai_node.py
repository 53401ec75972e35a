"""The real OpenAI SDK for Node, unmodified."""

import pytest

from tests.clients.programs import Account, NodeClient
from tests.inference.lab import COST, MODEL, Lab
from tests.responses.answers import both, look_then_tell
from tests.upstream import chat, end_after

# The first of them installs.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def account(lab: Lab) -> Account:
    return Account(lab.gateway, lab.tenant, MODEL)


async def test_create(node: NodeClient, lab: Lab, account: Account) -> None:
    told = await node.run("create.mjs", account)
    assert told["text"] == "Hello"
    assert told["status"] == "completed"
    assert told["usage"]["input_tokens"] == 7
    assert told["usage"]["output_tokens"] == 3
    roles = [message["role"] for message in lab.upstream.requests[-1].json["messages"]]
    assert roles == ["system", "user"]
    entry = await lab.entry(told["requestId"])
    assert entry is not None
    assert (entry.status, entry.cost) == ("settled", COST)


async def test_stream(node: NodeClient, lab: Lab, account: Account) -> None:
    told = await node.run("stream.mjs", account)
    assert told["types"][:2] == ["response.created", "response.in_progress"]
    assert told["types"][-1] == "response.completed"
    assert told["deltas"] == ["Hel", "lo"]
    assert told["heard"] == ["Hel", "Hello"]
    assert (told["final"], told["status"]) == ("Hello", "completed")
    assert [usage["total_tokens"] for usage in told["usage"]] == [10, 10]
    assert (await lab.balance())["settled"] == 2 * COST


async def test_parse(node: NodeClient, lab: Lab, account: Account) -> None:
    lab.upstream.play(both({"content": '{"name": "Castle", "rooms": 7}'}))
    told = await node.run("parse.mjs", account)
    castle = {"name": "Castle", "rooms": 7}
    assert told == {"parsed": castle, "streamed": castle}
    wanted = lab.upstream.requests[-1].json["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["strict"] is True
    assert wanted["json_schema"]["schema"]["required"] == ["name", "rooms"]


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_tools_over_several_turns(
    node: NodeClient, lab: Lab, account: Account, way: str
) -> None:
    lab.upstream.play(look_then_tell())
    told = await node.run("tools.mjs", account, way)
    assert told["places"] == ["room 0", "room 1"]
    assert told["text"] == "I saw a room 0 and a room 1."
    assert told["farewell"] == "completed"
    sent = lab.upstream.requests[-1].json
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["user", *("assistant", "tool") * 2, "assistant", "user"]
    assert sent["tools"][0]["function"]["name"] == "look"
    assert (await lab.balance())["settled"] == 4 * COST


async def test_chat(node: NodeClient, lab: Lab, account: Account) -> None:
    lab.upstream.play(chat(), chat(), look_then_tell())
    told = await node.run("chat.mjs", account)
    assert told["whole"] == told["streamed"] == "Hello"
    assert told["usage"]["total_tokens"] == 10
    assert told["places"] == ["room 0", "room 1"]
    assert told["looped"] == "I saw a room 0 and a room 1."
    assert (await lab.balance())["settled"] == 5 * COST


async def test_refusals_are_the_sdks_errors(node: NodeClient, lab: Lab, account: Account) -> None:
    before = len(lab.upstream.requests)
    told = await node.run("errors.mjs", account)
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
    assert len(lab.upstream.requests) == before
    assert await lab.entries() == []


async def test_streams_that_break(node: NodeClient, lab: Lab, account: Account) -> None:
    lab.upstream.play(end_after(2))
    told = await node.run("broken.mjs", account)
    assert told["types"][0] == "response.created"
    assert told["types"][-1] == "response.failed"
    assert "response.completed" not in told["types"]
    assert told["failure"]["code"] == "server_error"
    assert told["chat"]["text"] == "0 1 "
    assert told["chat"]["error"]["kind"] == "APIError"
    statuses = [entry.status for entry in await lab.entries()]
    assert statuses == ["settled", "settled"]
