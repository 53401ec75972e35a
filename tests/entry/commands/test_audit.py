"""Tests `tollkeeper audit`."""

from datetime import UTC, datetime

from tests.support.gateway import Gateway
from tests.support.program import Program


def test_changes_are_listed_with_who_made_them(program: Program) -> None:
    as_dana = program.with_environment(SUDO_USER="dana")
    organization = as_dana.json("organization", "create", "Audited")["id"]
    project = as_dana.json("project", "create", organization, "Web")["id"]
    as_dana.json("cap", "set", organization, "1.5", "--period", "month")
    as_dana.json("cap", "set", organization, "2.5", "--period", "month")
    listed = program.json("audit", "list", "--organization", organization)
    assert [entry["operation"] for entry in listed["data"]] == [
        "cap_set",
        "cap_set",
        "project_create",
        "organization_create",
    ]
    assert {entry["who"] for entry in listed["data"]} == {"cli:dana"}
    assert listed["data"][0]["before"] == {"amount": "1.5", "period": "month"}
    assert listed["data"][0]["after"] == {"amount": "2.5", "period": "month"}
    assert listed["next_before"] is None
    of_project = program.json("audit", "list", "--object", project)["data"]
    assert [entry["operation"] for entry in of_project] == ["project_create"]

    filters = ("--organization", organization, "--actor")
    assert program.json("audit", "list", *filters, "Dana")["data"] == listed["data"]
    assert program.json("audit", "list", *filters, "erin")["data"] == []

    shown = program.run("audit", "list", "--organization", organization).out
    assert "amount: 1.5 -> 2.5" in shown
    assert "cli:dana" in shown


async def test_people_see_names(program: Program, gateway: Gateway) -> None:
    tenant = await gateway.make_recorded_tenant()
    organization = await gateway.services.organizations.organization_show(tenant.organization_id)
    policy = await gateway.make_policy(tenant)
    listed = program.json("audit", "list", "--organization", organization.name)["data"]
    assert [(entry["object_id"], entry["object"]) for entry in listed[:2]] == [
        (policy["id"], policy["name"]),
        (listed[1]["object_id"], "app"),
    ]
    assert listed[-1]["object"] == organization.name
    assert listed[0]["who"] == f"api:admin key {listed[2]['object_id']}"
    header, first, *_ = program.run(
        "audit", "list", "--organization", organization.name
    ).out.splitlines()
    assert header.split("\t") == ["id", "at", "by", "operation", "object", "change"]
    assert first.split("\t")[2:5] == ["api:admin key root", "policy_create", policy["name"]]


def test_times_are_times(program: Program) -> None:
    organization = program.json("organization", "create", "Timed")["id"]
    project = program.json("project", "create", organization, "Web")["id"]
    key = program.json("project-key", "create", project, "app")["id"]
    program.json("project-key", "revoke", key)
    line = ("audit", "list", "--organization", organization)
    entry = program.json(*line)["data"][0]
    revoked_at = entry["after"]["revoked_at"]
    shown = datetime.fromtimestamp(revoked_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    table = program.run(*line).out
    assert f"revoked_at: - -> {shown}" in table
    assert str(revoked_at) not in table


def test_pages(program: Program) -> None:
    organization = program.json("organization", "create", "Paged")["id"]
    for number in range(3):
        program.json("project", "create", organization, f"p{number}")
    line = ("audit", "list", "--organization", organization, "--limit", "3")
    first = program.json(*line)
    assert len(first["data"]) == 3
    assert f"--before {first['next_before']}" in program.run(*line).out
    second = program.json(*line, "--before", str(first["next_before"]))
    assert [entry["operation"] for entry in second["data"]] == ["organization_create"]
    assert program.json(*line, "--since", "2099-01-01")["data"] == []
