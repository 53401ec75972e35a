"""Tests that an endpoint rejects bodies that are not strict JSON, quickly and with a proper error."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.json_corpus import BAD_DOCUMENTS, BAD_VALUES, GOOD_NUMBERS
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.faces import strict_json
from tollkeeper.faces.wire.chat import ChatRequest

_DEPTH_MAX = 64


@pytest.fixture(scope="module")
async def acme(gateway: Gateway) -> Tenant:
    return await gateway.make_tenant()


async def _post(gateway: Gateway, tenant: Tenant, body: bytes) -> httpx2.Response:
    return await gateway.client.post(
        "/v1/organization/policies",
        content=body,
        headers={**tenant.as_admin, **idempotency_key(), "Content-Type": "application/json"},
    )


async def _assert_refused(gateway: Gateway, tenant: Tenant, bodies: Iterable[bytes]) -> None:
    """Sends all bodies at once, and checks that each one is rejected with status 400."""
    tried = list(bodies)
    answers = await asyncio.gather(*(_post(gateway, tenant, body) for body in tried))
    for body, answer in zip(tried, answers, strict=True):
        assert answer.status_code == 400, (body[:100], answer.text)
        assert answer.json()["error"]["code"] == "invalid_request", body[:100]


def _groups(values: list[bytes], size: int = 12) -> list[list[bytes]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


@each("values", _groups(BAD_VALUES))
async def test_value_that_is_no_json(gateway: Gateway, acme: Tenant, values: list[bytes]) -> None:
    await _assert_refused(
        gateway, acme, (b'{"name":"n","rule":"r?","description":%s}' % value for value in values)
    )


@each("values", _groups(BAD_DOCUMENTS + BAD_VALUES))
async def test_document_that_is_no_object(
    gateway: Gateway, acme: Tenant, values: list[bytes]
) -> None:
    await _assert_refused(gateway, acme, values)


async def test_every_beginning_of_a_body(gateway: Gateway, acme: Tenant) -> None:
    body = b'{"name":"\\u0041","rule":"r?","project_ids":[],"match_threshold_basis_points":12}'
    assert (await _post(gateway, acme, body)).status_code == 200
    await _assert_refused(gateway, acme, (body[:length] for length in range(len(body))))


async def test_white_space_is_json(gateway: Gateway, acme: Tenant) -> None:
    body = b' \n\r\t{ "name" :\t"n"\n, "rule":"r?" } \r\n'
    assert (await _post(gateway, acme, body)).status_code == 200


_DUPLICATES = [
    (b'{"name":"a","name":"a","rule":"r?"}', "name"),
    (b'{"name":"a","rule":"r?","name":"b"}', "name"),
    (b'{"name":"a","rule":"r?","n\\u0061me":"b"}', "name"),
    (b'{"\\u006e\\u0061\\u006d\\u0065":"a","rule":"r?","name":"b"}', "name"),
    (b'{"name":"a","rule":"q?","rule":"r?"}', "rule"),
    (b'{"name":"a","rule":"r?","project_ids":[],"project_ids":[]}', "project_ids"),
]


@each(("body", "key"), _DUPLICATES)
async def test_duplicate_key(gateway: Gateway, acme: Tenant, body: bytes, key: str) -> None:
    assert_error(await _post(gateway, acme, body), 400, "invalid_request", key)


async def test_same_key_in_different_case_is_unknown(gateway: Gateway, acme: Tenant) -> None:
    body = b'{"name":"a","rule":"r?","Name":"b"}'
    assert_error(await _post(gateway, acme, body), 400, "invalid_request", "Name")


_FREE = msgspec.json.Decoder(dict[str, object])


@each("depth", range(1, 6))
def test_duplicate_key_at_any_depth(depth: int) -> None:
    """Tests the decoder with free-form bodies, because no body for `/v1/organization` has inner objects."""
    inside = b'{"a":1,"b":2,"\\u0061":3}'
    for opening, closing in ((b'{"x":', b"}"), (b'{"x":[0,', b"]}")):
        body = opening * depth + inside + closing * depth
        with pytest.raises(InvalidRequest) as refused:
            strict_json.decode(body, _FREE)
        assert refused.value.param == "a"


_CHAT = msgspec.json.Decoder(ChatRequest)
_CHAT_MEMBERS = st.lists(
    st.sampled_from(
        [
            b'"content":":"',
            b'"content":null',
            b'"content" : [{"type":"text","text":"\\"}]',
            b'"name":"\\\\"',
            b'"name":"\\":\\""',
            b'"\\u0072ole":"user"',
        ]
    ),
    max_size=3,
)


def _decode_chat(body: bytes) -> Any:
    """Decodes the body of a chat request as the application does. Returns the request."""
    context = SimpleNamespace(decoder=_CHAT, endpoint=SimpleNamespace(stored=False))
    request: Any = SimpleNamespace(raw_body=body, context=context, is_large=False)
    share: Any = SimpleNamespace(size=0, grow_to=lambda size: None)
    asyncio.run(strict_json.decode_body(request, share, 1000, None))
    return request


@each(
    "text",
    [
        "unknown field `evil`",
        "Object contains unknown field `evil`",
        "Object missing required field `evil`",
        "x` - at `$.evil",
        "x - at `$.evil`",
        "x - at `key` in `$.evil` x",
    ],
)
def test_the_param_of_an_error_does_not_depend_on_the_value(text: str) -> None:
    """Tests values of clients that look like the end of an error's text, which quotes the value."""
    body = {"model": "m", "messages": [{"role": text, "content": "a"}]}
    with pytest.raises(InvalidRequest) as refused:
        strict_json.decode(msgspec.json.encode(body), _CHAT)
    assert refused.value.param == "messages[0].role"
    assert text in refused.value.message


@each("field", ["evil", "two words", "with `quotes`", "x - at `$.y` z", "two\nlines", ""])
def test_the_param_of_an_unknown_field_is_its_name(field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a", field: 1}]}
    with pytest.raises(InvalidRequest) as refused:
        strict_json.decode(msgspec.json.encode(body), _CHAT)
    assert refused.value.param == f"messages[0].{field}"


@each(
    ("before", "messages", "after", "key"),
    [
        (b"", b'{"role":"user"},{"role":"user","content":"a","content":"b"}', b"", "content"),
        (b"", b'{"role":"user"},{"role":"user","content":"a"}', b',"model":"m"', "model"),
        (b"", b'{"role":"user","content":"\\""}', b',"model":"m"', "model"),
        (b"", b'{"role":"user","content":"\\\\"}', b',"\\u006dodel":"m"', "model"),
        (b'"n" : 1,', b'{"role":"user","content":":"}', b',"n" :1', "n"),
        (b"", b'{"role":"user","content":[],"role":"user"}', b"", "role"),
        (b'"stop":[":",":"],', b'{"role":"user","content":"a"}', b',"stop":":"', "stop"),
    ],
)
def test_duplicate_key_in_a_chat_request(
    before: bytes, messages: bytes, after: bytes, key: str
) -> None:
    """Tests duplicates in bodies for which a wrong count of members or of minimum members would be equal."""
    with pytest.raises(InvalidRequest, match="occurs twice") as refused:
        _decode_chat(b'{%b"model":"m","messages":[%b]%b}' % (before, messages, after))
    assert refused.value.param == key


@given(
    messages=st.lists(_CHAT_MEMBERS, min_size=1, max_size=3),
    fields=st.lists(
        st.sampled_from([b'"n":1', b'"stop":[":",":"]', b'"user":null', b'"metadata":{"n":"1"}']),
        max_size=3,
    ),
)
def test_no_duplicate_key_in_a_chat_request_is_overlooked(
    messages: list[list[bytes]], fields: list[bytes]
) -> None:
    """Tests that the number of colons is compared with a number that is never too high."""
    inside = b",".join(b"{%b}" % b",".join((b'"role":"user"', *members)) for members in messages)
    body = b"{%b}" % b",".join((b'"model":"m"', *fields, b'"messages":[%b]' % inside))

    def error_of(decode: Callable[[], object]) -> str | None:
        try:
            decode()
        except InvalidRequest as error:
            return f"{error.param}: {error.message}"
        return None

    error = error_of(lambda: _decode_chat(body))
    assert error == error_of(lambda: strict_json.decode(body, _CHAT))
    if error is None:
        assert _decode_chat(body).fields == msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def test_equal_keys_of_different_objects_are_no_duplicates() -> None:
    body = b'{"a":{"a":{"a":[{"a":1},{"a":1}]}},"b":{"a":1}}'
    assert strict_json.decode(body, _FREE) == msgspec.json.decode(body)


@each("value", GOOD_NUMBERS)
def test_good_number(value: bytes) -> None:
    assert strict_json.decode(b'{"a":%s}' % value, _FREE) == {"a": int(value)}


_INTEGER = "match_threshold_basis_points"
_NO_INTEGERS = [
    b"1.0",
    b"1e2",
    b"1E2",
    b"100e-1",
    b"1.5",
    b"true",
    b"false",
    b'"1"',
    b"1e400",
    b"-1e400",
    b"1e-400",
    b"9" * 5000,
    b"-" + b"9" * 5000,
    b"18446744073709551616",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"0." + b"1" * 5000,
]


async def test_no_integer(gateway: Gateway, acme: Tenant) -> None:
    tried = [b'{"name":"n","rule":"r?","%s":%s}' % (_INTEGER.encode(), v) for v in _NO_INTEGERS]
    for answer in await asyncio.gather(*(_post(gateway, acme, body) for body in tried)):
        assert_error(answer, 400, "invalid_request", _INTEGER)


def _nested(levels: int, opening: bytes, closing: bytes) -> bytes:
    """Returns a document with this number of levels, including its outer braces."""
    return b'{"x":' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"


@each(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_bound(opening: bytes, closing: bytes) -> None:
    strict_json.decode(_nested(_DEPTH_MAX, opening, closing), _FREE)
    with pytest.raises(InvalidRequest, match="nested more than 64 levels"):
        strict_json.decode(_nested(_DEPTH_MAX + 1, opening, closing), _FREE)


def test_brackets_in_strings_and_side_by_side_are_not_depth() -> None:
    for value in (b'"' + b"[{" * 1000 + b'"', b'"\\"' + b"[" * 1000 + b'\\\\"'):
        strict_json.decode(b'{"x":%s}' % value, _FREE)
    strict_json.decode(b'{"x":[%s]}' % b",".join([b"[[{}]]"] * 1000), _FREE)


async def test_deep_and_wide_bodies(gateway: Gateway, acme: Tenant) -> None:
    keys = b",".join(b'"k%d":0' % number for number in range(10**6))
    bodies = [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"name":"n","rule":"r?",' + keys + b"}",
        b'{"name":"n","rule":"r?","project_ids":[' + b",".join([b'"x"'] * 10**6) + b"]}",
        b'{"name":"' + b"a" * 10**7 + b'","rule":"r?"}',
        b'{"' + b"k" * 10**7 + b'":1}',
    ]
    for body in bodies:
        answer = await _post(gateway, acme, body)
        assert answer.status_code == 400
        assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "body",
    [
        b"[]" * 70 + b'"' + b'\\"' * 500_000,
        b"[]" * 70 + b'"' + b"a" * 10**7,
        b"[]" * 70 + b'"' + b"a" * 10**7 + b'"',
        b"[]" * 70 + b'"a"' * 10**6,
        b"[]" * 70 + b"\\" * 10**6,
        b"[]" * 10**6,
    ],
    ids=["escapes", "no end", "long", "many", "backslashes", "brackets"],
)
@pytest.mark.timeout(30)
def test_looking_for_depth_takes_time_in_proportion(body: bytes) -> None:
    """Tests that the time is linear. A quadratic scan would exceed the timeout for the first body."""
    with pytest.raises(InvalidRequest):
        strict_json.decode(body, _FREE)
