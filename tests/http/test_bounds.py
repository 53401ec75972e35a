"""Tests the limits that are checked before a body is decoded: its structure, the memory of all bodies in
flight, and the rate limit."""

import asyncio
import json
import random
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.raw_http import RawConnection, raw_connection
from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway, chat_body, eventually
from tests.support.tables import each
from tests.support.upstream import hang
from tollkeeper.core.access import (
    PROJECT_KEY_PERMISSIONS,
    KeyId,
    OrganizationId,
    ProjectCaller,
    ProjectId,
)
from tollkeeper.core.errors import InvalidRequest, RateLimited, Unavailable
from tollkeeper.core.runtime.large_requests import LARGE_CALL_REQUESTS_MAX
from tollkeeper.faces.strict_json import DEPTH_MAX, check_bounds, decode_body
from tollkeeper.http.envelope import PayloadTooLarge
from tollkeeper.http.request_memory import RequestMemory, RequestShare, memory_of
from tollkeeper.setup.settings import Settings

_MANY = 10**9
_ELEMENTS_MAX = 1000
_BODY_MAX = 2 << 20
_BODIES_MAX = 7 << 20
_PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    changed = {
        "setup.app.HttpConventions": {"body_elements_max": _ELEMENTS_MAX},
        "setup.app._REQUESTS_BYTES_MIN": _BODIES_MAX,
        "setup.app._MAXIMUM_BODIES_MIN": 1,
    }
    return {"limits": {"body_bytes": _BODY_MAX}, "drain_s": 0, "changed_constants": changed}


@pytest.fixture
async def scripted(scripted: ScriptedGateway) -> ScriptedGateway:
    """Returns the gateway when all requests of earlier tests have ended and their memory is free."""
    app = scripted.gateway.app
    assert app is not None
    await eventually(lambda: app._request_memory.bytes == 0)
    return scripted


# The check of a body's structure.


def _elements(value: object) -> int:
    """Counts elements as the limit does: an empty array or object counts as one more element."""
    if isinstance(value, dict):
        return max(len(value), 1) + sum(map(_elements, value.values()))
    if isinstance(value, list):
        return max(len(value), 1) + sum(map(_elements, value))
    return 0


_TEXTS = st.text(st.sampled_from('ab"\\,[]{}:\n é'), max_size=20)
_VALUES = st.recursive(
    st.none() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=30,
)


@given(value=_VALUES, ascii_only=st.booleans(), repeats=st.sampled_from([1, 4000]))
def test_elements_are_counted_exactly(*, value: object, ascii_only: bool, repeats: int) -> None:
    """Tests that the content of strings does not count, even if a slice of the body ends in a string."""
    whole = [value] * repeats
    body = json.dumps(whole, ensure_ascii=ascii_only).encode()
    elements = _elements(whole)
    check_bounds(body, elements)
    with pytest.raises(InvalidRequest, match=f"more than {elements - 1} elements"):
        check_bounds(body, elements - 1)


@each("text", ['"', "\\", '\\"', "[", "{", ",", '"[', "\\\\[", '\\",[{'])
@each("size", [1, 32 << 10, (32 << 10) + 1, 100_000])
def test_text_has_no_elements(text: str, size: int) -> None:
    for before in range(4):
        body = json.dumps(["x" * before, text * size, 1]).encode()
        check_bounds(body, 3)


@each("end", [b"", b'"', b"\\", b'\\"', b"]", b"}]" * 100])
def test_what_is_no_json_is_passed_on(end: bytes) -> None:
    """Tests that the check accepts invalid JSON, which the decoder rejects later."""
    check_bounds(b'["' + b"x" * 40_000 + end, 10**6)


def test_depth_counts_across_slices() -> None:
    filler = b'"' + b"x" * (33 << 10) + b'",'
    nested = (b"[" + filler) * DEPTH_MAX + b"1" + b"]" * DEPTH_MAX
    check_bounds(nested, _MANY)
    with pytest.raises(InvalidRequest, match="nested more than"):
        check_bounds(b"[" + nested + b"]", _MANY)


# One body over HTTP.


def _saying(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


_MESSAGES = [{"role": "user", "content": "Hello"}]


@each(
    "field",
    [
        {"messages": _MESSAGES * 600},
        {"messages": _MESSAGES, "tools": [[]] * 1000},
        {"messages": _MESSAGES, "metadata": {str(number): "x" for number in range(1000)}},
        {"messages": _MESSAGES, "logit_bias": {str(number): 1 for number in range(1000)}},
    ],
)
async def test_a_body_of_many_elements_is_refused_by_name(
    scripted: ScriptedGateway, field: dict[str, object]
) -> None:
    answer = await scripted.gateway.client.post(
        _PATH, json=chat_body(**field), headers=scripted.tenant.as_customer
    )
    assert_error(answer, 400, "invalid_request")
    assert "1000 elements" in answer.json()["error"]["message"]


async def test_a_large_body_within_its_bounds_is_answered(scripted: ScriptedGateway) -> None:
    """Tests a body that is so large that it is decoded and measured outside of the event loop."""
    for content in ("word, [" * 100_000, '\\"' * 100_000):
        answer = await scripted.chat(messages=[{"role": "user", "content": content}])
        assert answer.status_code == 200, answer.text
        sent = scripted.upstream.requests[-1].json
        assert sent["messages"][0]["content"] == content


async def test_a_large_body_that_is_wrong_is_refused_as_a_small_one(
    scripted: ScriptedGateway,
) -> None:
    large = "x" * 300_000
    wrong = json.dumps(chat_body(messages=[{"role": "nobody", "content": large}])).encode()
    twice = b'{"model":"a","model":"b","messages":[{"role":"user","content":"%b"}]}'
    cut = json.dumps(chat_body(messages=_saying(large))).encode()[:-1]
    headers = {**scripted.tenant.as_customer, "Content-Type": "application/json"}
    for content, param in (
        (wrong, "messages[0].role"),
        (twice % large.encode(), "model"),
        (cut, None),
    ):
        answer = await scripted.gateway.client.post(_PATH, content=content, headers=headers)
        assert_error(answer, 400, "invalid_request", param=param)


# Two tenants: requests of one tenant are rejected while calls of the other are served.


async def test_a_hostile_body_leaves_others_alone(scripted: ScriptedGateway) -> None:
    hostile = await scripted.gateway.make_tenant("Hostile")
    bodies = [
        json.dumps(chat_body(messages=_MESSAGES * 30_000)).encode(),
        json.dumps(chat_body(tools=[[]] * 400_000)).encode(),
        json.dumps(chat_body(messages=_saying("x, " * 500_000))).encode(),
    ]

    async def attack(body: bytes) -> httpx2.Response:
        headers = {**hostile.as_customer, "Content-Type": "application/json"}
        return await scripted.gateway.client.post(_PATH, content=body, headers=headers)

    attacks = [asyncio.create_task(attack(random.choice(bodies))) for _ in range(8)]
    for _ in range(8):
        assert (await scripted.chat()).status_code == 200
    for answer in await asyncio.gather(*attacks):
        assert answer.status_code in (400, 402, 429), answer.text


class _Watched(bytes):
    """Fails if the event loop searches the whole body."""

    def count(self, *arguments: Any) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return super().count(*arguments)


async def test_long_body_is_searched_in_the_thread_only() -> None:
    """Tests that a body of 32 MiB does not stop the event loop for a fifth of a second."""
    endpoint = SimpleNamespace(stored=False)
    context = SimpleNamespace(decoder=msgspec.json.Decoder(), endpoint=endpoint)
    request: Any = SimpleNamespace(raw_body=_Watched(b'"' + b"a" * 200_000 + b'"'), context=context)
    memory = RequestMemory(_BODIES_MAX)
    share = _share(memory, _caller())
    assert await decode_body(request, share, _ELEMENTS_MAX, None) == "a" * 200_000
    assert request.is_large


# Bodies in flight.


def test_shares_are_taken_and_given_back() -> None:
    bodies = RequestMemory(80)
    mine = _caller()
    first, second = _share(bodies, mine), _share(bodies, mine)
    first.grow_to(30)
    first.grow_to(20)
    second.grow_to(10)
    with pytest.raises(RateLimited, match="this organization"):
        second.grow_to(11)
    assert bodies.bytes == 40
    for share in (first, second):
        share.release()
        share.release()
    assert bodies.bytes == 0
    second.grow_to(60)


def test_keys_of_one_organization_share_its_room() -> None:
    bodies = RequestMemory(160)
    one = _caller()
    other = _share(bodies, replace(one, key_id=KeyId(uuid4())))
    first = _share(bodies, one)
    first.grow_to(60)
    with pytest.raises(RateLimited, match="this organization"):
        other.grow_to(21)
    other.grow_to(20)
    _share(bodies, _caller()).grow_to(40)


_ROOM = 100_000


@given(
    sizes=st.lists(st.integers(200, _ROOM), min_size=1, max_size=8),
    piece=st.integers(1_000, _ROOM),
)
def test_no_number_of_organizations_takes_all_of_the_room(sizes: list[int], piece: int) -> None:
    """Tests organizations that send bodies of one size, which grow in steps, until they are rejected."""
    bodies = RequestMemory(_ROOM)
    sending = {_caller().organization_id: size for size in sizes}
    shares = []
    while sending:
        for organization, size in tuple(sending.items()):
            caller = replace(_caller(), organization_id=organization)
            share = _share(bodies, caller)
            shares.append(share)
            try:
                for grown in (*range(0, size, piece), size):
                    share.grow_to(grown)
            except (PayloadTooLarge, RateLimited, Unavailable):
                del sending[organization]
    assert _ROOM - bodies.bytes >= _ROOM / 8 * 0.5 ** len(sizes)
    _share(bodies, _caller()).grow_to((_ROOM - bodies.bytes) // 2)


def test_one_request_may_have_more_than_it_leaves_free() -> None:
    bodies = RequestMemory(80)
    share, second = (
        _share(bodies, _caller()),
        _share(bodies, _caller()),
    )
    share.grow_to(30)
    share.grow_to(70)
    with pytest.raises(PayloadTooLarge):
        share.grow_to(71)
    second.grow_to(5)
    with pytest.raises(Unavailable):
        second.grow_to(6)


def test_every_body_fits_by_default() -> None:
    """Tests the body that needs the most memory: with emoji, the most elements and several completions."""
    body_max = Settings().limits.body_bytes
    body = "\N{GRINNING FACE}".encode() + b"x" * (body_max - 4)
    needed = memory_of(body, 100_000) + (LARGE_CALL_REQUESTS_MAX - 1) * len(body)
    # The factor of docs/configuration.md. The gateway of this file has less memory.
    room = 16 * body_max
    bodies = RequestMemory(room)
    _share(bodies, _caller()).grow_to(needed)


def _share(bodies: RequestMemory, caller: ProjectCaller) -> RequestShare:
    return RequestShare(bodies.organization_memory(caller.organization_id))


def _caller() -> ProjectCaller:
    return ProjectCaller(
        organization_id=OrganizationId(uuid4()),
        project_id=ProjectId(uuid4()),
        key_id=KeyId(uuid4()),
        permissions=frozenset(),
    )


def _declared(tenant: Tenant, size: int) -> bytes:
    return (
        f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.project_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


async def _is_refused(connection: RawConnection, status: int, code: str) -> None:
    answer = await connection.answer()
    answer.assert_error(status, code)
    assert answer.headers["retry-after"] == "1"


async def _declare(
    stack: AsyncExitStack, gateway: Gateway, tenant: Tenant, sent: bytes, number: int
) -> list[RawConnection]:
    """Declares bodies of the largest size, and sends only a part of each. Returns the connections."""
    found = []
    for _ in range(number):
        connection = await stack.enter_async_context(raw_connection(gateway))
        await connection.send(_declared(tenant, _BODY_MAX), sent)
        found.append(connection)
    await asyncio.sleep(0.1)
    return found


async def _with_another_key(gateway: Gateway, tenant: Tenant) -> Tenant:
    _, key = await gateway.services.project_keys.project_key_create_by_operator(
        tenant.project_id, f"one of many {uuid4().hex}", PROJECT_KEY_PERMISSIONS, None
    )
    return replace(tenant, project_key=key)


@each("sent", [b"{", b" " * 500_000], ids=["nothing", "a part"])
async def test_two_organizations_with_bodies_that_never_end_leave_room(
    scripted: ScriptedGateway, sent: bytes
) -> None:
    """Tests that a body counts by the bytes that have arrived, not by its declared length, even if the
    organizations have several keys."""
    gateway, quiet = scripted.gateway, await scripted.with_tenant()
    hostile = [await gateway.make_tenant("Hostile") for _ in range(2)]
    owners = [await _with_another_key(gateway, tenant) for tenant in hostile for _ in range(4)]
    async with AsyncExitStack() as stack:
        for owner in owners:
            await _declare(stack, gateway, owner, sent, 4)
        for _ in range(24):
            assert (await quiet.chat()).status_code == 200
        assert (await quiet.chat(messages=_saying("x" * 100_000))).status_code == 200


async def test_a_body_that_has_not_arrived_takes_no_room(scripted: ScriptedGateway) -> None:
    """Tests four bodies that together exceed the limit of one key, but arrive one after the other."""
    body = json.dumps(chat_body()).encode().ljust(1 << 20)
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(4):
            connections.append(await stack.enter_async_context(raw_connection(scripted.gateway)))
            await connections[-1].send(_declared(scripted.tenant, len(body)), body[:1])
        for connection in connections:
            await connection.send(body[1:])
            assert (await connection.answer()).status == 200


async def _one_is_refused(connections: list[RawConnection]) -> None:
    """Checks that one connection is rejected. The order in which the bytes arrive decides which."""
    answers = [
        asyncio.create_task(_is_refused(connection, 429, "rate_limit_exceeded"))
        for connection in connections
    ]
    done, rest = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.gather(*done)


async def test_bodies_of_one_key_are_bounded_as_they_arrive(scripted: ScriptedGateway) -> None:
    gateway, tenant = scripted.gateway, scripted.tenant
    async with AsyncExitStack() as stack:
        connections = await _declare(stack, gateway, tenant, b" " * 1_500_000, 3)
        await _one_is_refused(connections)
        # Other organizations are not affected.
        other = await scripted.with_tenant()
        assert (await other.chat(messages=_saying("x" * 100_000))).status_code == 200

    async def has_room() -> bool:
        async with raw_connection(gateway) as third:
            await third.send(_declared(tenant, _BODY_MAX), b"{" + b" " * (_BODY_MAX - 1))
            return (await third.answer()).status == 400

    async with asyncio.timeout(20):
        while not await has_room():  # noqa: ASYNC110 - no event signals the disconnect
            await asyncio.sleep(0.05)


async def test_bodies_without_a_length_count_as_they_grow(scripted: ScriptedGateway) -> None:
    gateway, tenant = scripted.gateway, scripted.tenant
    head = _declared(tenant, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    piece = b"%x\r\n%b\r\n" % (1_500_000, b" " * 1_500_000)
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(3):
            connections.append(await stack.enter_async_context(raw_connection(gateway)))
            await connections[-1].send(head, piece)
        await _one_is_refused(connections)


async def test_a_running_call_keeps_its_share(scripted: ScriptedGateway) -> None:
    """Tests that a body counts as long as its call runs, because it stays in memory."""
    scripted.upstream.play(hang())
    gateway, tenant = scripted.gateway, scripted.tenant
    body = json.dumps(chat_body(messages=_saying("x" * (_BODY_MAX - 1000)))).encode()
    async with raw_connection(gateway) as first, raw_connection(gateway) as second:
        await first.send(_declared(tenant, len(body)), body)
        await eventually(lambda: scripted.upstream.under_way == 1)
        await second.send(_declared(tenant, _BODY_MAX), b" " * 1_500_000)
        await _is_refused(second, 429, "rate_limit_exceeded")
        first.abort()
        await eventually(lambda: scripted.upstream.under_way == 0)


# The rate limit, which is checked before the body.


async def test_who_is_beyond_its_rate_is_refused_before_its_body(
    scripted: ScriptedGateway,
) -> None:
    await scripted.gateway.services.accounts.limit_set(
        scripted.tenant.project_id, requests_per_minute=1
    )
    assert (await scripted.chat()).status_code == 200
    assert_error(await scripted.chat(), 429, "rate_limit_exceeded")
    async with raw_connection(scripted.gateway) as connection:
        # The client sends no byte of the body, and the rejection does not wait for it.
        await connection.send(_declared(scripted.tenant, 1000))
        answer = await connection.answer()
    answer.assert_error(429, "rate_limit_exceeded")
    assert "1 requests per minute" in answer.json()["error"]["message"]
    other = await scripted.with_tenant()
    assert (await other.chat()).status_code == 200


_COUNT_PATH = "/v1/messages/count_tokens"


async def _count(scripted: ScriptedGateway) -> httpx2.Response:
    body = {"model": MODEL, "messages": _MESSAGES}
    return await scripted.gateway.client.post(
        _COUNT_PATH, json=body, headers=scripted.tenant.as_customer
    )


@pytest.mark.parametrize(
    ("refused", "asked"), [("count", "count"), ("count", "chat"), ("chat", "count")]
)
async def test_token_counting_is_refused_by_the_rate_before_its_body(
    scripted: ScriptedGateway, refused: str, asked: str
) -> None:
    """Tests that token counting and calls share one rate limit, so both are rejected together."""
    await scripted.gateway.services.accounts.limit_set(
        scripted.tenant.project_id, requests_per_minute=1
    )
    assert (await _count(scripted)).status_code == 200
    found = await (_count(scripted) if refused == "count" else scripted.chat())
    assert_error(found, 429, "rate_limit_exceeded")
    declared = _declared(scripted.tenant, 1000)
    async with raw_connection(scripted.gateway) as connection:
        await connection.send(
            declared if asked == "chat" else declared.replace(_PATH.encode(), _COUNT_PATH.encode())
        )
        answer = await connection.answer()
    answer.assert_error(429, "rate_limit_exceeded")
    assert "1 requests per minute" in answer.json()["error"]["message"]
    assert "retry-after" in answer.headers
    other = await scripted.with_tenant()
    assert (await _count(other)).status_code == 200
