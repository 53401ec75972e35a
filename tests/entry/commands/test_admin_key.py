"""Tests `tollkeeper admin-key`."""

from uuid import uuid4

import httpx2

from tests.support.gateway import Gateway
from tests.support.program import Program
from tollkeeper.core.access import ADMIN_PERMISSIONS


def test_created_listed_oldest_first_and_revoked(program: Program) -> None:
    organization = program.json("organization", "create", "Keys")["id"]
    first = program.json(
        *("admin-key", "create", organization, "ci"),
        *("--permission", "policies:read", "--permission", "billing:read"),
    )
    assert first["value"].startswith("tka_")
    assert first["permissions"] == ["billing:read", "policies:read"]
    assert first["status"] == "active"
    assert first["organization_id"] == organization == first["owner"]["id"]
    second = program.json(
        "admin-key", "create", organization, "root", "--all-permissions", "--expires-in", "3600"
    )
    assert second["permissions"] == sorted(ADMIN_PERMISSIONS)
    assert 0 <= second["expires_at"] - second["created_at"] - 3600 <= 1

    listed = program.json("admin-key", "list", organization)["data"]
    assert [key["id"] for key in listed] == [first["id"], second["id"]]
    assert all("value" not in key for key in listed)

    revoked = program.json("admin-key", "revoke", first["id"])
    assert revoked["status"] == "revoked"
    listed = program.json("admin-key", "list", organization)["data"]
    assert [key["id"] for key in listed] == [second["id"]]
    assert program.refusal("admin-key", "revoke", first["id"])


async def test_the_value_opens_the_api(
    program: Program, organization: str, gateway: Gateway
) -> None:
    key = program.json("admin-key", "create", organization, "api", "--all-permissions")
    answer: httpx2.Response = await gateway.client.get(
        "/v1/organization/admin_api_keys", headers={"Authorization": f"Bearer {key['value']}"}
    )
    assert answer.status_code == 200
    assert key["id"] in [found["id"] for found in answer.json()["data"]]


def test_the_value_is_shown_once_and_says_so(program: Program, organization: str) -> None:
    outcome = program.run("admin-key", "create", organization, "seen", "--all-permissions")
    value = next(line.split()[1] for line in outcome.out.splitlines() if line.startswith("value"))
    assert value.startswith("tka_")
    assert "cannot be shown again" in outcome.out
    listed = program.run("admin-key", "list", organization).out
    assert value not in listed
    assert value[:8] in listed


def test_permissions_are_named_or_all(program: Program, organization: str) -> None:
    for options in ((), ("--all-permissions", "--permission", "billing:read")):
        outcome = program.run("admin-key", "create", organization, "none", *options)
        assert outcome.code == 2
        assert "--all-permissions" in outcome.err


def test_refusals(program: Program, organization: str) -> None:
    unknown = str(uuid4())
    assert (
        program.refusal("admin-key", "create", unknown, "k", "--all-permissions")
        == f"There is no organization {unknown}."
    )
    assert program.refusal("admin-key", "list", unknown) == f"There is no organization {unknown}."
    for named in (f"nobody {unknown}", unknown):
        assert program.refusal("admin-key", "revoke", named) == f"There is no admin key {named}."
    # An admin key cannot have a permission of project keys.
    refusal = program.refusal(
        "admin-key", "create", organization, "k", "--permission", "inference:write"
    )
    assert "'inference:write' is not a permission of this kind of key" in refusal
    assert "policies:read" in refusal
