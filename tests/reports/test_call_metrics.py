"""Tests the metrics and log lines of calls. Metrics have labels for operation, model and backend, but no
labels for tenants."""

import json

import pytest
from prometheus_client import REGISTRY, generate_latest

from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import refuse
from tollkeeper.core.runtime.output import log_output
from tollkeeper.core.runtime.tallies import write_tallies


def _sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0


def _labels(scripted: ScriptedGateway) -> dict[str, str]:
    (backend,) = scripted.gateway.services.backends
    return {"model": MODEL, "backend": backend}


async def test_a_call_is_counted_once_everywhere(scripted: ScriptedGateway) -> None:
    labels = _labels(scripted)
    by_operation = {"operation": "chat_create", **labels}
    names = {
        "tollkeeper_calls_total": {**by_operation, "status": "200"},
        "tollkeeper_call_duration_seconds_count": by_operation,
        "tollkeeper_call_first_byte_seconds_count": labels,
        "tollkeeper_upstream_duration_seconds_count": labels,
        "tollkeeper_gateway_overhead_seconds_count": {"operation": "chat_create"},
        "tollkeeper_settlements_total": {"model": MODEL, "settlement": "settled"},
    }
    write_tallies()
    before = {name: _sample(name, **found) for name, found in names.items()}
    tokens = _sample("tollkeeper_tokens_total", model=MODEL, kind="completion")
    cost = _sample("tollkeeper_cost_usd_total", model=MODEL)
    answer = await scripted.chat()
    assert answer.status_code == 200
    usage = answer.json()["usage"]
    write_tallies()
    assert {name: _sample(name, **found) - before[name] for name, found in names.items()} == (
        dict.fromkeys(names, 1)
    )
    after = _sample("tollkeeper_tokens_total", model=MODEL, kind="completion")
    assert after - tokens == usage["completion_tokens"]
    entry = await scripted.entry_of(answer)
    spent = _sample("tollkeeper_cost_usd_total", model=MODEL) - cost
    assert spent == pytest.approx(entry.cost / 10**12)


async def test_time_upstream_and_overhead_add_up(scripted: ScriptedGateway) -> None:
    labels = _labels(scripted)
    sums = (
        ("tollkeeper_call_duration_seconds_sum", {"operation": "chat_create", **labels}),
        ("tollkeeper_upstream_duration_seconds_sum", labels),
        ("tollkeeper_gateway_overhead_seconds_sum", {"operation": "chat_create"}),
    )
    write_tallies()
    before = [_sample(name, **found) for name, found in sums]
    await scripted.chat()
    write_tallies()
    total, upstream, overhead = (
        _sample(name, **found) - earlier
        for (name, found), earlier in zip(sums, before, strict=True)
    )
    assert total == pytest.approx(upstream + overhead)
    assert overhead > 0


async def test_durations_of_requests_are_counted_by_operation(scripted: ScriptedGateway) -> None:
    name, operations = "tollkeeper_request_duration_seconds", ("chat_create", "cost_report")
    samples = [
        (f"{name}_{kind}", operation) for kind in ("count", "sum") for operation in operations
    ]
    write_tallies()
    before = [_sample(sample, operation=operation) for sample, operation in samples]
    path, headers = "/v1/organization/costs?start_time=1", scripted.tenant.as_admin
    await scripted.chat()
    await scripted.gateway.client.get(path, headers=headers)
    await scripted.chat()
    write_tallies()
    chats, reports, *sums = (
        _sample(sample, operation=operation) - earlier
        for (sample, operation), earlier in zip(samples, before, strict=True)
    )
    assert (chats, reports) == (2, 1)
    assert min(sums) > 0


async def test_a_refused_call_has_its_status_and_no_tokens(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(refuse(422))
    labels = {"operation": "chat_create", **_labels(scripted), "status": "422"}
    write_tallies()
    before = _sample("tollkeeper_calls_total", **labels)
    tokens = _sample("tollkeeper_tokens_total", model=MODEL, kind="completion")
    assert (await scripted.chat()).status_code == 422
    write_tallies()
    assert _sample("tollkeeper_calls_total", **labels) == before + 1
    assert _sample("tollkeeper_tokens_total", model=MODEL, kind="completion") == tokens


async def test_no_label_names_a_tenant(scripted: ScriptedGateway) -> None:
    await scripted.chat()
    write_tallies()
    shown = generate_latest(REGISTRY).decode()
    tenant = scripted.tenant
    for secret in (tenant.organization_id, tenant.project_id, tenant.project_key):
        assert str(secret) not in shown


async def test_one_line_for_each_request(
    scripted: ScriptedGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    write_tallies()
    log_output.flush(10)
    capfd.readouterr()
    called = await scripted.chat(messages=[{"role": "user", "content": "My secret plan"}])
    unknown = await scripted.chat(model="absent")
    tenant, client = scripted.tenant, scripted.gateway.client
    shown = await client.get("/v1/organization/costs?start_time=1", headers=tenant.as_admin)
    write_tallies()
    log_output.flush(10)
    written = capfd.readouterr().err
    written_lines = [
        line for line in map(json.loads, written.splitlines()) if line["event"] == "request"
    ]
    lines = {line["request_id"]: line for line in written_lines}
    ids = [answer.headers["x-request-id"] for answer in (called, unknown, shown)]
    assert [lines[found]["status"] for found in ids] == [200, 404, 200]
    call = lines[ids[0]]
    assert call["model"] == MODEL
    assert call["completion_tokens"] == called.json()["usage"]["completion_tokens"]
    assert call["organization_id"] == str(tenant.organization_id)
    assert lines[ids[2]]["operation"] == "cost_report"
    assert sorted(line["request_id"] for line in written_lines) == sorted(ids)
    for secret in ("My secret plan", tenant.project_key, tenant.admin_key):
        assert secret not in written
