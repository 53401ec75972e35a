"""Tests the content of prompts and answers on spans, which the operator can switch on. If it is off, the
gateway does no work for it."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.journeys.telemetry.conftest import TracedGateway
from tests.support.judged_gateway import assert_denied, judged_gateway
from tests.support.otlp_collector import Collector, attributes_of
from tests.support.upstream import reset_after
from tollkeeper.calls.recorder import CallRecorder
from tollkeeper.calls.tab import Tab
from tollkeeper.setup import telemetry

_PROMPT = "A very private question"
_NAMES = {
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
}


@pytest.fixture
def traced(traced: TracedGateway, collector: Collector) -> TracedGateway:
    """Switches content on. A test can change this with keyword arguments."""
    return lambda **changes: traced(**{"endpoint": collector.endpoint, "content": True, **changes})


def _only_content(collector: Collector) -> dict[str, Any]:
    (span,) = collector.spans
    attributes = attributes_of(span)
    return {name: json.loads(attributes[name]) for name in _NAMES & set(attributes)}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_span_carries_the_call(
    traced: TracedGateway, collector: Collector, *, streamed: bool
) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": _PROMPT},
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    async with traced() as scripted:
        tenant = scripted.tenant
        asked = [*messages, {"role": "user", "content": f"My key is {tenant.project_key}"}]
        answer = await scripted.chat(messages=asked, tools=[tool], stream=streamed)
        assert answer.status_code == 200
    found = _only_content(collector)
    assert found == {
        "gen_ai.system_instructions": [{"type": "text", "content": "Be kind."}],
        "gen_ai.tool.definitions": [
            {"type": "function", "name": "look", "parameters": {"type": "object"}}
        ],
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": _PROMPT}]},
            {
                "role": "user",
                "parts": [{"type": "text", "content": f"My key is {tenant.project_key[:8]}..."}],
            },
        ],
        "gen_ai.output.messages": [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "Hello"}],
                "finish_reason": "stop",
            }
        ],
    }
    (span,) = collector.spans
    assert attributes_of(span)["tollkeeper.organization_id"] == str(tenant.organization_id)
    assert tenant.project_key.encode() not in collector.raw


async def test_arguments_that_are_nested_too_deeply(
    traced: TracedGateway, collector: Collector
) -> None:
    """The span shows them as text. An error here would leave the call in the list of running calls."""
    deep = '{"place": ' + 2000 * "[" + 2000 * "]" + "}"
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": deep}}
    messages = [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a lake"},
    ]
    async with traced() as scripted:
        answer = await scripted.chat(messages=messages)
        assert answer.status_code == 200, answer.text
        assert scripted.gateway.services.inference.running == 0
    (_, said, _) = _only_content(collector)["gen_ai.input.messages"]
    assert said["parts"][0]["arguments"] == deep


async def test_a_span_has_the_part_of_an_answer_that_came(
    traced: TracedGateway, collector: Collector
) -> None:
    async with traced() as scripted:
        scripted.upstream.play(reset_after(2))
        await scripted.chat(stream=True)
    (message,) = _only_content(collector)["gen_ai.output.messages"]
    assert message["parts"] == [{"type": "text", "content": "0 1 "}]
    assert message["finish_reason"] == "error"


async def test_content_is_bounded_on_each_span(
    traced: TracedGateway, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.setup.telemetry.CONTENT_BYTES", 1024)
    async with traced() as scripted:
        answer = await scripted.chat(messages=[{"role": "user", "content": "word " * 1000}])
        assert answer.status_code == 200
    (span,) = collector.spans
    attributes = attributes_of(span)
    assert sum(len(attributes.get(name, "")) for name in _NAMES) <= 1024
    (cut,) = attributes["tollkeeper.content.cut"].values
    assert cut.string_value == "gen_ai.input.messages"
    (message,) = json.loads(attributes["gen_ai.input.messages"])
    assert message["parts"][0]["content"].endswith("… [cut: the text has 5000 characters]")


async def test_an_answer_that_a_policy_holds_back_is_not_sent(
    data_dir: Path, conninfo: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry.ENDPOINT, collector.endpoint)
    monkeypatch.setenv(telemetry.CONTENT, "true")
    async with judged_gateway(data_dir, conninfo) as running:
        judged = await running.with_tenant()
        policy = await judged.enforce("bomb", direction="response")
        judged.say("Here is a bomb")
        assert_denied(await judged.chat("What is this?"), policy, "response")
    assert b"What is this?" in collector.raw
    assert b"Here is a bomb" not in collector.raw


async def test_a_call_that_is_not_admitted_has_no_content(
    traced: TracedGateway, collector: Collector
) -> None:
    async with traced() as scripted:
        poor = await scripted.with_tenant(credit=0)
        answer = await poor.chat(messages=[{"role": "user", "content": _PROMPT}])
        assert answer.status_code == 402
    assert _only_content(collector) == {}
    assert _PROMPT.encode() not in collector.raw


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [({"content": False}, "always_on"), ({}, "parentbased_always_off")],
    ids=["off", "not sampled"],
)
async def test_without_it_nothing_is_done(
    traced: TracedGateway,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    sampler: str,
) -> None:
    """The gateway collects and encodes no content, and does not replace the sink of the call."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    collected, encoded = Mock(), Mock()
    monkeypatch.setattr(telemetry, "AnswerContent", collected)
    monkeypatch.setattr(telemetry, "content_attributes", encoded)
    sinks = []
    started = CallRecorder.started

    def watched(recorder: CallRecorder, tab: Tab) -> None:
        before = tab.sink
        started(recorder, tab)
        sinks.append(tab.sink is before)

    monkeypatch.setattr(CallRecorder, "started", watched)
    async with traced(**settings) as scripted:
        messages = [{"role": "user", "content": _PROMPT}]
        assert (await scripted.chat(messages=messages, stream=True)).status_code == 200
    assert (collected.call_count, encoded.call_count, sinks) == (0, 0, [True])
    assert _PROMPT.encode() not in collector.raw
