"""Tests native wires over HTTP: paths, headers, token counts, faults and their cost. Each test runs for every
native wire. Tests of a single wire are in the folder of that wire."""

from typing import Any

import pytest

from tests.providers.faults import BOTH, check_failure
from tests.providers.native_wires import EACH_REFUSAL, EACH_WIRE, NATIVE_WIRES, NativeWire, Refusal
from tests.support.backend_calls import KEY, Outcome, make, make_config, make_prompt, routed
from tests.support.upstream import Peer, Upstream, Verb, answer, refuse
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded, OptionUnsupported
from tollkeeper.core.usage import Usage, added
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.fan_out import FanOutBackend
from tollkeeper.providers.request_fields import offered_functions
from tollkeeper.providers.wires import wire_for


async def _fault(
    wire: NativeWire, verb: Verb, *, streamed: bool = True, **settings: Any
) -> Outcome:
    async with (
        Upstream(verb) as upstream,
        routed(upstream.url, **wire.settings, **settings) as backend,
    ):
        outcome = await make(backend, wire.call(streamed=streamed))
        assert len(upstream.requests) == 1
        return outcome


@BOTH
@EACH_WIRE
async def test_an_answer(wire: NativeWire, streamed: bool) -> None:
    async with (
        Upstream(wire.ordinary()) as upstream,
        routed(upstream.url, **wire.settings) as backend,
    ):
        outcome = await make(backend, wire.call(streamed=streamed))
        # After a complete answer, the connection stays open for the next call.
        assert upstream.open_connections == upstream.connections == 1
    outcome.check_complete()
    assert outcome.text() == "Hello"
    assert outcome.deltas[-1].finish == "stop"
    (request,) = upstream.requests
    assert request.path == wire.paths[streamed]
    name, value = wire.key
    assert request.headers[name] == value
    others = {"authorization", "x-api-key", "x-goog-api-key", "api-key"} - {name}
    assert not others & set(request.headers)


@EACH_WIRE
async def test_the_provider_counts(wire: NativeWire) -> None:
    call = wire.call(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    async with (
        Upstream(wire.ordinary(input_tokens=321)) as upstream,
        routed(upstream.url, **wire.settings) as backend,
    ):
        assert backend.counts_tokens
        assert await backend.count_prompt_tokens(call, deadline=1e9) == 321
    (request,) = upstream.requests
    assert request.path == wire.paths[2]
    assert request.headers[wire.key[0]] == wire.key[1]


@EACH_WIRE
async def test_no_count_is_none(wire: NativeWire) -> None:
    verbs = [refuse(429), answer({wire.count_field: -1}), answer({"tokens": 1}), answer(b"{")]
    for verb in verbs:
        async with Upstream(verb) as upstream, routed(upstream.url, **wire.settings) as backend:
            assert await backend.count_prompt_tokens(wire.call(), deadline=1e9) is None
        assert len(upstream.requests) == 1


@EACH_WIRE
async def test_several_completions_are_several_calls(wire: NativeWire) -> None:
    async with (
        Upstream(wire.ordinary()) as upstream,
        routed(upstream.url, **wire.settings) as backend,
    ):
        outcome = await make(FanOutBackend(backend, concurrency=2), wire.call(choices=3))
    outcome.check_complete(choices=3)
    assert outcome.meter.charge() == added([Usage(12, 5)] * 3)
    assert len(upstream.requests) == 3


@BOTH
@EACH_REFUSAL
async def test_a_refusal(wire: NativeWire, refusal: Refusal, streamed: bool) -> None:
    verb = wire.refuse(refusal.status, refusal.kind, f"key {KEY}")
    outcome = await _fault(wire, verb, streamed=streamed)
    check_failure(outcome, refusal.error, charged=refusal.charged)


@EACH_WIRE
async def test_another_replica_answers_for_one_that_is_busy(wire: NativeWire) -> None:
    async with (
        Upstream(wire.refuse(*wire.busy)) as busy,
        Upstream(wire.ordinary()) as free,
        routed(busy.url, free.url, **wire.settings, retries=1) as backend,
    ):
        for _ in range(4):
            assert (await make(backend, wire.call())).text() == "Hello"
    assert len(free.requests) == 4


@EACH_WIRE
async def test_an_error_in_the_middle(wire: NativeWire) -> None:
    outcome = await _fault(wire, wire.streaming(wire.said(wire.failing())))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")


@EACH_WIRE
async def test_an_error_in_the_place_of_the_answer(wire: NativeWire) -> None:
    outcome = await _fault(wire, wire.streaming([wire.failing()]))
    check_failure(outcome, BackendFailed, charged=False)


@EACH_WIRE
async def test_a_stream_that_ends_early(wire: NativeWire) -> None:
    outcome = await _fault(wire, wire.streaming(wire.said()))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")
    outcome = await _fault(wire, wire.streaming([wire.begun()]))
    check_failure(outcome, BackendFailed, charged=True)


@EACH_WIRE
async def test_a_silent_answer_ends_at_the_deadline(wire: NativeWire) -> None:
    """Before the first content arrives, the idle timeout does not apply; only the deadline does."""
    begun = wire.begun()

    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=wire.stream_type)
        await peer.send_chunk(begun)
        await peer.until_left()

    async with Upstream(verb) as upstream, routed(upstream.url, **wire.settings) as backend:
        outcome = await make(backend, wire.call(streamed=True), deadline_s=0.3)
    check_failure(outcome, DeadlineExceeded, charged=True)


@EACH_WIRE
async def test_records_cut_anywhere_read_the_same(wire: NativeWire) -> None:
    data = b"".join(wire.records())
    for position in range(1, len(data), 97):
        outcome = await _fault(wire, wire.streaming([data[:position], data[position:]]))
        assert (outcome.text(), outcome.error) == ("Hello", None)


@EACH_WIRE
async def test_a_character_that_is_split_between_records(wire: NativeWire) -> None:
    """The scripted server sends a text in two halves. Here these are the halves of a surrogate pair."""
    split = {"type": "text", "text": "\ud83e\udd8a"}
    outcome = await _fault(wire, wire.ordinary(split))
    outcome.check_complete()
    assert outcome.text() == "🦊"


@EACH_WIRE
async def test_a_stream_of_another_kind_cannot_be_read(wire: NativeWire) -> None:
    outcome = await _fault(wire, answer(b"{}", content_type="application/json"))
    assert isinstance(outcome.error, BackendFailed)
    assert outcome.error.charged


_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# The messages before a message with this role.
_BEFORE: dict[str, list[dict[str, Any]]] = {
    "system": [],
    "user": [{"role": "user", "content": "Hi"}],
    "assistant": [{"role": "user", "content": "Hi"}],
    "tool": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [_CALL]}],
}
_TEXT: dict[str, Any] = {"type": "text", "text": "Hi"}


@EACH_WIRE
@pytest.mark.parametrize("role", _BEFORE)
def test_an_unknown_property_is_named_with_its_position(wire: NativeWire, role: str) -> None:
    before = _BEFORE[role]
    message = {"role": role, "content": [_TEXT, {**_TEXT, "foo": 1}]}
    if role == "tool":
        message["tool_call_id"] = "c"
    messages = [*before, message]
    if role == "system":
        messages.append({"role": "user", "content": "Hi"})
    encoder = wire_for(make_config("http://a/v1", **wire.settings))
    with pytest.raises(OptionUnsupported) as refused:
        encoder.encode_request(wire.call(messages=messages), stream=False, extra={})
    assert refused.value.param == f"messages[{len(before)}].content[1].foo"


@EACH_WIRE
def test_reasoning_of_a_user_is_named_with_its_position(wire: NativeWire) -> None:
    thinking = {"type": "thinking", "thinking": "Hm."}
    messages = [{"role": "user", "content": [_TEXT, thinking]}]
    encoder = wire_for(make_config("http://a/v1", **wire.settings))
    with pytest.raises(OptionUnsupported) as refused:
        encoder.encode_request(wire.call(messages=messages), stream=False, extra={})
    assert refused.value.param == "messages[0].content[1]"


def test_every_native_protocol_is_in_the_table() -> None:
    other = {"chat", "responses", "vertex_messages", "vertex_gemini"}
    assert set(NATIVE_WIRES) == {protocol.value for protocol in WireProtocol} - other


@pytest.mark.timeout(30)
def test_many_allowed_functions_take_time_in_proportion() -> None:
    """Tests that the time is linear. A search through all allowed names for each tool takes a minute."""
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(50_000)]
    others = [{"type": "function", "function": {"name": f"g{number}"}} for number in range(50_000)]
    allowed = {"mode": "auto", "tools": [*others, tools[-1]]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    (offered,) = offered_functions(make_prompt(tools=tools, tool_choice=choice))
    assert offered.name == "f49999"
