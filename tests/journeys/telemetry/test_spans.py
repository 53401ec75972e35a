"""Tests traces and metrics over OTLP: a call's span is the child of the client's span and the parent of
the backend's span, and contains no text."""

import secrets
import sys

import pytest

from tests.journeys.telemetry.conftest import TracedGateway
from tests.support.otlp_collector import Collector, attributes_of
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.upstream import refuse
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.setup import telemetry
from tollkeeper.setup.settings import SettingsError
from tollkeeper.setup.telemetry import build_tracer

_PROMPT = "A very private question"


def _sent_upstream(scripted: ScriptedGateway) -> str | None:
    return scripted.upstream.requests[-1].headers.get("traceparent")


async def test_a_span_lies_between_the_callers_and_the_backends(
    traced: TracedGateway, collector: Collector
) -> None:
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    async with traced(endpoint=collector.endpoint) as scripted:
        headers = {**scripted.tenant.as_customer, "traceparent": f"00-{trace}-{parent}-01"}
        messages = [{"role": "user", "content": _PROMPT}]
        answer = await scripted.chat(messages=messages, headers=headers)
        assert answer.status_code == 200
        sent = _sent_upstream(scripted)
        key = scripted.tenant.project_key
    (span,) = (span for span in collector.spans if span.trace_id.hex() == trace)
    assert span.parent_span_id.hex() == parent
    assert sent == f"00-{trace}-{span.span_id.hex()}-01"
    assert span.name == f"chat {MODEL}"
    attributes = attributes_of(span)
    usage = answer.json()["usage"]
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "scripted"
    assert attributes["gen_ai.request.model"] == MODEL
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert attributes["tollkeeper.cost_usd"] == usd_from_picousd(COST)
    assert "gen_ai.system" not in attributes
    assert {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.server.time_to_first_token",
    } <= set(collector.metrics)
    for secret in (_PROMPT, key):
        assert secret.encode() not in collector.raw


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "00-" + "A" * 32 + "-x-01"],
)
async def test_a_malformed_trace_is_ignored(
    traced: TracedGateway, collector: Collector, header: str
) -> None:
    async with traced(endpoint=collector.endpoint) as scripted:
        headers = {**scripted.tenant.as_customer, "traceparent": header}
        assert (await scripted.chat(headers=headers)).status_code == 200
    (span,) = collector.spans
    assert span.parent_span_id == b""


async def test_a_failed_call_is_an_error(traced: TracedGateway, collector: Collector) -> None:
    async with traced(endpoint=collector.endpoint) as scripted:
        scripted.upstream.play(refuse(422))
        assert (await scripted.chat()).status_code == 422
    (span,) = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert attributes_of(span)["http.response.status_code"] == 422


async def test_off_means_off(traced: TracedGateway) -> None:
    async with traced() as scripted:
        headers = {
            **scripted.tenant.as_customer,
            "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        }
        assert (await scripted.chat(headers=headers)).status_code == 200
        assert _sent_upstream(scripted) is None
        assert scripted.gateway.services.recorder.tracer is None


@pytest.mark.slow
async def test_a_collector_that_is_away_harms_no_call(traced: TracedGateway) -> None:
    async with traced(endpoint="http://127.0.0.1:1") as scripted:
        assert (await scripted.chat()).status_code == 200
        assert (await scripted.balance())["settled"] == COST


def test_without_the_extra_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_tracer() is None
    monkeypatch.setenv(telemetry.ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, telemetry._SDK_MODULES[1], None)
    with pytest.raises(SettingsError, match=r"install tollkeeper\[otel\]"):
        build_tracer()
