"""Tests requests with the same head on one or two connections: the head is parsed once, but its key is
checked for every request."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.http.raw_http import Answer, RawConnection, raw_connection
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tollkeeper.http.request_parser import RequestParser


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each call of the parser's `feed` appends the size of its data."""
    sizes: list[int] = []
    feed: Callable[[RequestParser, bytes, int], int] = RequestParser.feed

    def noted(parser: RequestParser, data: bytes, start: int) -> int:
        sizes.append(len(data))
        return feed(parser, data, start)

    monkeypatch.setattr(RequestParser, "feed", noted)
    return sizes


async def _ask(
    connection: RawConnection,
    key: str,
    text: str,
    path: str = "/v1/chat/completions",
    *,
    body_later: bool = False,
) -> Answer:
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": text}]}
    encoded = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n"
    ).encode()
    if body_later:
        for piece in (head, encoded[:10], encoded[10:]):
            await connection.send(piece)
            await asyncio.sleep(0.02)
    else:
        await connection.send(head, encoded)
    return await connection.answer()


async def test_each_request_has_its_own_body_and_charge(
    scripted: ScriptedGateway, fed: list[int]
) -> None:
    key, texts = scripted.tenant.project_key, ["one", "a longer one", "é" * 300, "four"]
    async with raw_connection(scripted.gateway) as connection:
        answers = [await _ask(connection, key, text) for text in texts]
    assert [answer.status for answer in answers] == [200] * len(texts)
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(texts)
    sent = [json.loads(seen.body)["messages"][0]["content"] for seen in scripted.upstream.requests]
    assert sent[-len(texts) :] == texts
    assert [entry.cost for entry in await scripted.entries()] == [COST] * len(texts)
    assert len(fed) == 2, "a head and a body, of the first request only"


async def test_a_body_may_come_later(scripted: ScriptedGateway, fed: list[int]) -> None:
    key, texts = scripted.tenant.project_key, ["one", "two", "three"]
    async with raw_connection(scripted.gateway) as connection:
        for text in texts:
            assert (await _ask(connection, key, text, body_later=True)).status == 200
        assert (await _ask(connection, key, "four")).status == 200
    sent = [json.loads(seen.body)["messages"][0]["content"] for seen in scripted.upstream.requests]
    assert sent[-4:] == [*texts, "four"]
    assert len(await scripted.entries()) == 4


async def test_errors_of_a_body_do_not_stay(scripted: ScriptedGateway, fed: list[int]) -> None:
    key = scripted.tenant.project_key
    async with raw_connection(scripted.gateway) as connection:
        assert (await _ask(connection, key, "one")).status == 200
        await connection.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nContent-Length: 3\r\n\r\n{]}".encode()
        )
        (await connection.answer()).assert_error(400, "invalid_request")
        assert (await _ask(connection, key, "three")).status == 200
    assert len(fed) == 2


async def test_another_key_or_path_is_seen(scripted: ScriptedGateway) -> None:
    other = await scripted.with_tenant()
    key = scripted.tenant.project_key
    async with raw_connection(scripted.gateway) as connection:
        assert (await _ask(connection, key, "mine")).status == 200
        assert (await _ask(connection, other.tenant.project_key, "theirs")).status == 200
        wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
        (await _ask(connection, wrong, "nobody's")).assert_error(401, "invalid_api_key")
        (await _ask(connection, wrong, "nobody's")).assert_error(401, "invalid_api_key")
        (await _ask(connection, key, "mine", "/v1/nothing")).assert_error(404, "not_found")
        assert (await _ask(connection, key, "mine")).status == 200
    assert len(await scripted.entries()) == 2
    assert len(await other.entries()) == 1


async def test_a_key_that_is_revoked_ends_at_once(
    scripted: ScriptedGateway, fed: list[int]
) -> None:
    key = scripted.tenant.project_key
    async with raw_connection(scripted.gateway) as connection:
        assert (await _ask(connection, key, "one")).status == 200
        keys = scripted.gateway.services.project_keys
        (own,) = await keys.project_key_list(scripted.tenant.project_id)
        await keys.project_key_revoke(own.id)
        (await _ask(connection, key, "two")).assert_error(401, "invalid_api_key")
    assert len(fed) == 2
    assert len(await scripted.entries()) == 1


async def test_a_second_connection_needs_no_parsing(
    scripted: ScriptedGateway, fed: list[int]
) -> None:
    """Calls with one head may also be in progress at the same time, on different connections."""
    key, texts = scripted.tenant.project_key, ["one", "two", "three"]
    async with (
        raw_connection(scripted.gateway) as first,
        raw_connection(scripted.gateway) as second,
        raw_connection(scripted.gateway) as third,
    ):
        assert (await _ask(first, key, texts[0])).status == 200
        answers = await asyncio.gather(
            _ask(second, key, texts[1]), _ask(third, key, texts[2], body_later=True)
        )
        assert [answer.status for answer in answers] == [200, 200]
    sent = [json.loads(seen.body)["messages"][0]["content"] for seen in scripted.upstream.requests]
    assert sorted(sent[-len(texts) :]) == sorted(texts)
    assert [entry.cost for entry in await scripted.entries()] == [COST] * len(texts)
    assert len(fed) == 4, "a head and a body of the first call, and the late body in two pieces"


async def test_a_second_connection_has_its_own_tenant(scripted: ScriptedGateway) -> None:
    other = await scripted.with_tenant()
    async with (
        raw_connection(scripted.gateway) as first,
        raw_connection(scripted.gateway) as second,
    ):
        assert (await _ask(first, scripted.tenant.project_key, "mine")).status == 200
        assert (await _ask(second, other.tenant.project_key, "theirs")).status == 200
        assert (await _ask(second, scripted.tenant.project_key, "mine")).status == 200
    assert len(await scripted.entries()) == 2
    assert len(await other.entries()) == 1


async def test_a_revoked_key_opens_no_second_connection(scripted: ScriptedGateway) -> None:
    key = scripted.tenant.project_key
    async with (
        raw_connection(scripted.gateway) as first,
        raw_connection(scripted.gateway) as second,
    ):
        assert (await _ask(first, key, "one")).status == 200
        keys = scripted.gateway.services.project_keys
        (own,) = await keys.project_key_list(scripted.tenant.project_id)
        await keys.project_key_revoke(own.id)
        (await _ask(second, key, "two")).assert_error(401, "invalid_api_key")
    assert len(await scripted.entries()) == 1
