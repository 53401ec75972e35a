"""Tests `tollkeeper project-key`."""

from uuid import uuid4

from tests.support.gateway import Gateway
from tests.support.program import Program


def test_life_of_a_key(program: Program, project: str) -> None:
    created = program.json("project-key", "create", project, "app", "--expires-in", "3600")
    assert created["value"].startswith("tkp_")
    assert created["status"] == "active"
    assert created["permissions"] == ["inference:write", "models:read"]
    assert created["project_id"] == project == created["owner"]["id"]
    assert created["organization_id"]
    assert created["expires_at"] == created["created_at"] + 3600
    key = created["id"]

    assert program.json("project-key", "suspend", key)["status"] == "suspended"
    assert "Only a key that is in use" in program.refusal("project-key", "suspend", key)
    assert program.json("project-key", "unsuspend", key)["status"] == "active"
    assert "Only a suspended key" in program.refusal("project-key", "unsuspend", key)
    revoked = program.json("project-key", "revoke", key)
    assert revoked["status"] == "revoked"
    assert "value" not in revoked
    assert program.refusal("project-key", "revoke", key) == "The key is revoked already."
    for verb in ("suspend", "unsuspend"):
        assert program.refusal("project-key", verb, key)
    listed = program.json("project-key", "list", project)["data"]
    assert revoked in listed


async def test_the_value_opens_the_api_until_it_is_suspended(
    program: Program, project: str, gateway: Gateway
) -> None:
    created = program.json(
        "project-key", "create", project, "reader", "--permission", "models:read"
    )
    assert created["permissions"] == ["models:read"]
    headers = {"Authorization": f"Bearer {created['value']}"}
    answer = await gateway.client.get("/v1/models/example%2Fchat-small", headers=headers)
    assert answer.status_code == 200
    program.json("project-key", "suspend", created["id"])
    answer = await gateway.client.get("/v1/models/example%2Fchat-small", headers=headers)
    assert answer.status_code == 401


def test_a_list_of_models(program: Program, project: str) -> None:
    key = program.json("project-key", "create", project, "listed")["id"]
    changed = program.json("project-key", "allow-models", key, "exam*", "example")
    assert changed["models"] == ["exam*", "example"]
    refusal = program.refusal("project-key", "allow-models", key, "exam*", "claude-*")
    assert refusal == "No model of the settings matches claude-*."
    rotated = program.json("project-key", "rotate", key)
    assert rotated["models"] == changed["models"]
    assert program.json("project-key", "allow-models", key, "--every")["models"] == []
    change = program.json("audit", "list", "--object", key)["data"][0]
    assert change["operation"] == "project_key_allow_models"
    assert change["before"]["models"] == ["exam*", "example"]
    assert change["after"]["models"] == []
    program.json("project-key", "revoke", key)
    refusal = program.refusal("project-key", "allow-models", key, "exam*")
    assert refusal == "The key is revoked."


def test_the_value_is_shown_once_and_says_so(program: Program, project: str) -> None:
    outcome = program.run("project-key", "create", project, "seen")
    assert "tkp_" in outcome.out
    assert "cannot be shown again" in outcome.out


def test_refusals(program: Program, project: str) -> None:
    unknown = str(uuid4())
    assert (
        program.refusal("project-key", "create", unknown, "k") == f"There is no project {unknown}."
    )
    # The name is unique, because other tests share the database.
    nobody = f"nobody {unknown}"
    assert program.refusal("project-key", "list", nobody) == f"There is no project {nobody}."
    for verb in ("revoke", "suspend", "unsuspend"):
        for named in (nobody, unknown):
            refusal = program.refusal("project-key", verb, named)
            assert refusal == f"There is no project key {named}."
    refusal = program.refusal("project-key", "create", project, "k", "--permission", "billing:read")
    assert "'billing:read' is not a permission of this kind of key" in refusal


def test_life_time_is_bounded(program: Program, project: str) -> None:
    line = ("project-key", "create", project, "k", "--expires-in", "99999999999999")
    assert "expires in 1 to" in program.refusal(*line)


async def test_a_rotated_key_works_until_its_grace_is_over(
    program: Program, project: str, gateway: Gateway
) -> None:
    old = program.json("project-key", "create", project, "turning")
    new = program.json("project-key", "rotate", old["id"], "--grace", "1h")
    assert new["id"] != old["id"]
    assert new["value"] != old["value"]
    assert (new["name"], new["permissions"]) == (old["name"], old["permissions"])
    assert new["expires_at"] is None
    assert new["replaces"]["id"] == old["id"]
    assert 3590 <= new["replaces"]["expires_at"] - new["created_at"] <= 3600

    async def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        answer = await gateway.client.get("/v1/models/example%2Fchat-small", headers=headers)
        return answer.status_code

    assert [await status(old["value"]), await status(new["value"])] == [200, 200]
    refusal = program.refusal("project-key", "rotate", old["id"])
    assert refusal == "The key was rotated already."

    newest = program.json("project-key", "rotate", new["id"], "--grace", "0s")
    assert [await status(new["value"]), await status(newest["value"])] == [401, 200]
    refusal = program.refusal("project-key", "rotate", new["id"])
    assert refusal == "Only an active key can be rotated. This key is expired."
    changes = program.json("audit", "list", "--object", old["id"])["data"]
    assert [change["operation"] for change in changes] == [
        "project_key_rotate",
        "project_key_create",
    ]
    assert changes[0]["after"]["replaced_by"] == new["id"]
    assert old["value"] not in str(changes)


def test_a_rotated_key_never_outlives_what_it_had(program: Program, project: str) -> None:
    old = program.json("project-key", "create", project, "short", "--expires-in", "60")
    new = program.json("project-key", "rotate", old["id"])
    assert new["replaces"]["expires_at"] == old["expires_at"]
    assert new["expires_at"] - new["created_at"] == 60
