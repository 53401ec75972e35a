"""Tests that every refused request of a known key leaves a record with its reason, and that the record
contains no text of the request."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import chat
from tollkeeper.core.errors import InvalidRequest, without_quotations
from tollkeeper.core.runtime.request_log import RequestLine
from tollkeeper.core.runtime.tallies import write_tallies
from tollkeeper.core.views import ActivityEntry
from tollkeeper.reports.activity.export import activity_view

_SECRET = "my secret diagnosis"


async def _record(scripted: ScriptedGateway, answer: httpx2.Response) -> ActivityEntry:
    services = scripted.gateway.services
    await services.activity.drain()
    return await services.activity.activity_show(UUID(answer.headers["x-request-id"]))


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "message", "model"),
    [
        ({"temperature": "hot"}, 400, "invalid_request", "temperature", "Expected `", ""),
        ({"max_tokens": 99_999}, 400, "invalid_request", "max_tokens", "at most 2048", MODEL),
        (
            {"model": "gpt-none"},
            404,
            "model_not_found",
            "model",
            "There is no model 'gpt-none'.",
            "",
        ),
        ({"presence_penalty": 1}, 501, "not_implemented", "presence_penalty", "does not", MODEL),
        ({"policy_ids": ["pol_no"]}, 404, "not_found", "policy_ids[0]", "no published", MODEL),
    ],
)
async def test_a_refused_request_has_a_record_with_its_reason(
    scripted: ScriptedGateway,
    fields: dict[str, Any],
    status: int,
    code: str,
    param: str,
    message: str,
    model: str,
) -> None:
    answer = await scripted.chat(**fields)
    assert_error(answer, status, code, param)
    entry = await _record(scripted, answer)
    assert (entry.status, entry.error_code, entry.error_param) == (status, code, param)
    assert entry.error_message is not None
    assert message in entry.error_message
    assert (entry.model, entry.project_id) == (model, scripted.tenant.project_id)
    assert (entry.settlement, entry.requests, entry.cost_picousd) == ("none", 1, None)


async def test_the_record_of_a_402_has_the_arithmetic(scripted: ScriptedGateway) -> None:
    poor = await scripted.with_tenant(credit=7)
    answer = await poor.chat()
    assert_error(answer, 402, "payment_required")
    view = activity_view(await _record(scripted, answer))
    assert view["message"] == answer.json()["error"]["message"]
    for word in ("needed", "available", "held", "spent"):
        assert f"{word} 0" in view["message"]


async def test_the_log_line_of_a_refused_request_names_its_key_and_reason(
    scripted: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[RequestLine] = []
    log = scripted.gateway.services.request_log

    def render(rendered: Sequence[RequestLine]) -> bytes:
        lines.extend(rendered)
        return b""

    monkeypatch.setattr(log, "_render", render)
    answer = await scripted.chat(model="gpt-none")
    write_tallies()
    log.write()
    [line] = [line for line in lines if line.request_id == answer.headers["x-request-id"]]
    assert (line.status, line.error, line.param) == (404, "model_not_found", "model")
    assert line.api_key_id is not None
    assert line.message == "There is no model 'gpt-none'."


async def test_no_text_of_a_refused_request_is_stored(scripted: ScriptedGateway) -> None:
    message = {"role": "user", "content": [{"type": _SECRET, "text": _SECRET}]}
    bodies: list[dict[str, Any]] = [
        {"messages": [message]},
        {"messages": [{"role": _SECRET, "content": _SECRET}]},
        {"model": _SECRET},
        {_SECRET: 1},
        {"messages": [{"role": "user", "content": _SECRET, _SECRET: 1}]},
        {"tools": [{"type": _SECRET, "function": {"name": _SECRET}}]},
        {"response_format": {"type": _SECRET}},
        {"tool_choice": _SECRET},
        {"modalities": [_SECRET]},
        {"policy_ids": [_SECRET]},
    ]
    answers = [await scripted.chat(**body) for body in bodies]
    valid = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": _SECRET}]})
    answers.append(await scripted.send(valid[:-1].encode()))
    answers.append(await scripted.send(f'{valid[:-1]},"{_SECRET}":1,"{_SECRET}":2}}'.encode()))
    refused = [answer for answer in answers if answer.status_code >= 400]
    assert len(refused) >= 8
    for answer in refused:
        entry = await _record(scripted, answer)
        assert entry.error_message
        assert "secret" not in f"{entry.error_message} {entry.error_param} {entry.model}"


async def test_a_stranger_leaves_no_record(scripted: ScriptedGateway) -> None:
    services = scripted.gateway.services
    stranger = {"Authorization": "Bearer nobody"}
    answer = await scripted.chat(headers=stranger, model="gpt-none")
    assert answer.status_code == 401
    await services.activity.drain()
    mine = await services.activity.activity_list(organization_id=scripted.tenant.organization_id)
    assert mine == []


async def test_a_served_call_has_no_error_in_its_record(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(chat())
    entry = await scripted.activity_of(await scripted.chat())
    assert (entry.error_param, entry.error_message) == (None, None)


@pytest.mark.parametrize(
    ("message", "recorded"),
    [
        ("There is no model 'a/b-1'.", "There is no model 'a/b-1'."),
        ("There is no model 'a b'.", "There is no model \u2026."),
        ("The project's limit is reached.", "The project's limit is reached."),
        ("Invalid enum value 'x' my secret 'y'.", "Invalid enum value \u2026."),
        ('The key "it\'s me" occurs twice.', "The key \u2026 occurs twice."),
        ("Object contains unknown field `a b`.", "Object contains unknown field \u2026."),
        ("Expected `int`, got `str`.", "Expected `int`, got `str`."),
        ("two\nlines", "two lines"),
        ("x" * 600, "x" * 500),
    ],
)
def test_messages_are_recorded_without_quotations(message: str, recorded: str) -> None:
    assert without_quotations(message) == recorded


@pytest.mark.parametrize(
    ("param", "place"),
    [
        (None, None),
        ("messages[0].content", "messages[0].content"),
        ("messages[0].my secret", "messages[0].my\u2026"),
        ("a" * 300, "a" * 200 + "\u2026"),
    ],
)
def test_places_are_recorded_without_text(param: str | None, place: str | None) -> None:
    assert InvalidRequest(param=param).place == place
