"""Tests policies over HTTP: drafts, revisions, publication, pausing and the list of effective policies."""

import asyncio
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.tables import each
from tollkeeper.core.access import ProjectId
from tollkeeper.policies.policy import Policy

_POLICIES = "/v1/organization/policies"


async def _show(gateway: Gateway, tenant: Tenant, policy_id: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"{_POLICIES}/{policy_id}", headers=tenant.as_admin)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _edit(
    gateway: Gateway, tenant: Tenant, policy_id: str, revision: int, **fields: Any
) -> httpx2.Response:
    return await gateway.client.patch(
        f"{_POLICIES}/{policy_id}",
        json={"revision": revision, **fields},
        headers=tenant.as_admin,
    )


async def _pause(
    gateway: Gateway, tenant: Tenant, policy_id: str, revision: int
) -> httpx2.Response:
    return await gateway.client.post(
        f"{_POLICIES}/{policy_id}/pause", json={"revision": revision}, headers=tenant.as_admin
    )


async def _publish(gateway: Gateway, tenant: Tenant, policy_id: str, revision: int) -> Policy:
    return await gateway.services.policies.policy_publish(
        tenant.organization_id, policy_id, revision
    )


async def _resume(gateway: Gateway, tenant: Tenant, policy_id: str, revision: int) -> Policy:
    return await gateway.services.policies.policy_resume(
        tenant.organization_id, policy_id, revision
    )


async def _effective(gateway: Gateway, tenant: Tenant, project_id: object) -> dict[str, Any]:
    answer = await gateway.client.get(
        f"/v1/organization/projects/{project_id}/effective_policies", headers=tenant.as_admin
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _assert_conflict(answer: httpx2.Response, code: str, param: str | None = None) -> None:
    assert_error(answer, 409, code, param)
    assert answer.headers["x-should-retry"] == "false"


async def test_new_policy_is_a_draft_with_every_field(gateway: Gateway, tenant: Tenant) -> None:
    before = gateway.services.clock()
    created = await gateway.make_policy(tenant)
    assert created == {
        "object": "organization.policy",
        "id": created["id"],
        "name": "No secrets",
        "description": "",
        "state": "draft",
        "revision": 1,
        "has_unpublished_changes": True,
        "created_at": created["created_at"],
        "updated_at": created["created_at"],
        "draft": {
            "rule": "Does the text contain a secret?",
            "direction": "both",
            "mode": "monitoring",
            "scope": "organization",
            "project_ids": [],
            "match_threshold_basis_points": None,
            "base_version": 0,
        },
        "current_version": None,
        "published": None,
    }
    assert 1 <= len(created["id"]) <= 200
    assert before <= created["created_at"] <= gateway.services.clock()
    assert await _show(gateway, tenant, created["id"]) == created


async def test_every_field_is_kept(gateway: Gateway, tenant: Tenant) -> None:
    fields = {
        "direction": "response",
        "mode": "enforcing",
        "scope": "projects",
        "project_ids": [str(tenant.project_id)],
        "match_threshold_basis_points": 7500,
        "rule": "Is it?",
    }
    created = await gateway.make_policy(tenant, name="n", description="d", **fields)
    assert (created["name"], created["description"]) == ("n", "d")
    assert created["draft"] == {**fields, "base_version": 0}


async def test_edit_changes_only_what_it_names(gateway: Gateway, tenant: Tenant) -> None:
    created = await gateway.make_policy(tenant, description="d", match_threshold_basis_points=7)
    answer = await _edit(gateway, tenant, created["id"], 1, name="new")
    edited = answer.json()
    assert answer.status_code == 200
    expected = {**created, "name": "new", "revision": 2, "updated_at": edited["updated_at"]}
    assert edited == expected == await _show(gateway, tenant, created["id"])
    assert edited["updated_at"] >= created["updated_at"]


@each(
    ("field", "value"),
    [
        ("rule", "Another?"),
        ("direction", "request"),
        ("mode", "enforcing"),
        ("scope", "unattached"),
        ("match_threshold_basis_points", 1),
        ("match_threshold_basis_points", None),
    ],
)
async def test_edit_of_the_draft(
    gateway: Gateway, tenant: Tenant, field: str, value: object
) -> None:
    created = await gateway.make_policy(tenant, match_threshold_basis_points=9999)
    answer = await _edit(gateway, tenant, created["id"], 1, **{field: value})
    assert answer.json()["draft"] == {**created["draft"], field: value}


async def test_edit_of_nothing_counts_as_an_edit(gateway: Gateway, tenant: Tenant) -> None:
    created = await gateway.make_policy(tenant)
    edited = (await _edit(gateway, tenant, created["id"], 1)).json()
    assert edited == {**created, "revision": 2, "updated_at": edited["updated_at"]}


async def test_publication_is_a_snapshot_that_edits_do_not_touch(
    gateway: Gateway, tenant: Tenant
) -> None:
    created = await gateway.make_policy(tenant, mode="enforcing", match_threshold_basis_points=1234)
    await _publish(gateway, tenant, created["id"], 1)
    shown = await _show(gateway, tenant, created["id"])
    snapshot = shown["published"]
    assert snapshot == {
        "object": "organization.policy.version",
        "id": snapshot["id"],
        "version": 1,
        "direction": "both",
        "mode": "enforcing",
        "scope": "organization",
        "project_ids": [],
        "published_at": snapshot["published_at"],
        "current": True,
        "rule": "Does the text contain a secret?",
        "match_threshold_basis_points": 1234,
    }
    assert (shown["state"], shown["revision"], shown["current_version"]) == ("enforcing", 2, 1)
    assert shown["has_unpublished_changes"] is False
    assert shown["draft"]["base_version"] == 1

    edited = (
        await _edit(gateway, tenant, created["id"], 2, mode="monitoring", rule="Other?")
    ).json()
    assert edited["published"] == snapshot
    assert (edited["state"], edited["current_version"]) == ("enforcing", 1)
    assert edited["has_unpublished_changes"] is True
    assert edited["draft"]["base_version"] == 1

    await _publish(gateway, tenant, created["id"], 3)
    again = await _show(gateway, tenant, created["id"])
    assert (again["state"], again["current_version"]) == ("monitoring", 2)
    assert again["published"]["version"] == 2
    assert again["published"]["id"] != snapshot["id"]
    assert again["draft"]["base_version"] == 2


async def test_edit_back_to_the_published_state_is_no_unpublished_change(
    gateway: Gateway, tenant: Tenant
) -> None:
    policy = await gateway.make_policy(tenant)
    await _publish(gateway, tenant, policy["id"], 1)
    there = (await _edit(gateway, tenant, policy["id"], 2, direction="request")).json()
    back = (await _edit(gateway, tenant, policy["id"], 3, direction="both")).json()
    assert (there["has_unpublished_changes"], back["has_unpublished_changes"]) == (True, False)
    described = (await _edit(gateway, tenant, policy["id"], 4, description="y")).json()
    assert described["has_unpublished_changes"] is False
    named = (await _edit(gateway, tenant, policy["id"], 5, name="x")).json()
    assert named["has_unpublished_changes"] is True
    renamed = (await _edit(gateway, tenant, policy["id"], 6, name=policy["name"])).json()
    assert renamed["has_unpublished_changes"] is False


async def test_a_new_name_takes_effect_with_the_next_publication(
    gateway: Gateway, tenant: Tenant
) -> None:
    async def effective_names() -> list[str]:
        effective = await _effective(gateway, tenant, tenant.project_id)
        return [policy["name"] for policy in effective["data"]]

    policy = await gateway.make_policy(tenant, name="Old")
    await _publish(gateway, tenant, policy["id"], 1)
    edited = (await _edit(gateway, tenant, policy["id"], 2, name="New")).json()
    assert edited["name"] == "New"
    assert await effective_names() == ["Old"]
    paused = (await _pause(gateway, tenant, policy["id"], 3)).json()
    await _resume(gateway, tenant, policy["id"], paused["revision"])
    assert await effective_names() == ["Old"]
    await _publish(gateway, tenant, policy["id"], 5)
    assert await effective_names() == ["New"]
    shown = await _show(gateway, tenant, policy["id"])
    assert (shown["current_version"], shown["has_unpublished_changes"]) == (2, False)


async def test_published_policy_without_threshold_shows_the_default(
    gateway: Gateway, tenant: Tenant
) -> None:
    policy = await gateway.make_policy(tenant)
    await _publish(gateway, tenant, policy["id"], 1)
    shown = await _show(gateway, tenant, policy["id"])
    default = gateway.services.default_threshold
    assert shown["published"]["match_threshold_basis_points"] == default
    assert shown["draft"]["match_threshold_basis_points"] is None


async def test_earlier_version_stays_as_it_was(gateway: Gateway, tenant: Tenant) -> None:
    policy = await gateway.make_policy(tenant)
    await _publish(gateway, tenant, policy["id"], 1)
    await _edit(gateway, tenant, policy["id"], 2, rule="Second?")
    await _publish(gateway, tenant, policy["id"], 3)
    async with gateway.services.database.autocommit() as connection:
        cursor = await connection.execute(
            "SELECT version, rule FROM policy_versions WHERE policy_id = %s ORDER BY version",
            (policy["id"],),
        )
        assert await cursor.fetchall() == [(1, policy["draft"]["rule"]), (2, "Second?")]


async def test_pause_and_resume(gateway: Gateway, tenant: Tenant) -> None:
    policy = await gateway.make_policy(tenant, mode="enforcing")
    await _publish(gateway, tenant, policy["id"], 1)
    published = await _show(gateway, tenant, policy["id"])
    answer = await _pause(gateway, tenant, policy["id"], 2)
    paused = answer.json()
    assert answer.status_code == 200
    expected = {
        **published,
        "state": "paused",
        "revision": 3,
        "updated_at": paused["updated_at"],
    }
    assert paused == expected
    _assert_conflict(await _pause(gateway, tenant, policy["id"], 3), "state_conflict")
    edited = (await _edit(gateway, tenant, policy["id"], 3, mode="monitoring")).json()
    assert edited["state"] == "paused"
    await _resume(gateway, tenant, policy["id"], 4)
    resumed = await _show(gateway, tenant, policy["id"])
    assert (resumed["state"], resumed["revision"]) == ("enforcing", 5)


async def test_draft_cannot_be_paused(gateway: Gateway, tenant: Tenant) -> None:
    policy = await gateway.make_policy(tenant)
    _assert_conflict(await _pause(gateway, tenant, policy["id"], 1), "state_conflict")
    assert await _show(gateway, tenant, policy["id"]) == policy


@each("stale", [1, 3, 2147483647])
async def test_stale_revision(gateway: Gateway, tenant: Tenant, stale: int) -> None:
    policy = await gateway.make_policy(tenant)
    await _publish(gateway, tenant, policy["id"], 1)
    before = await _show(gateway, tenant, policy["id"])
    edit = await _edit(gateway, tenant, policy["id"], stale, name="x")
    _assert_conflict(edit, "revision_conflict", "revision")
    pause = await _pause(gateway, tenant, policy["id"], stale)
    _assert_conflict(pause, "revision_conflict", "revision")
    assert await _show(gateway, tenant, policy["id"]) == before


async def test_concurrent_edits_with_one_revision_have_one_winner(
    gateway: Gateway, tenant: Tenant
) -> None:
    policy = await gateway.make_policy(tenant)
    # The first rounds also open the database connections that the edits need to run concurrently.
    for revision in range(1, 5):
        answers = await asyncio.gather(
            *(
                _edit(gateway, tenant, policy["id"], revision, name=f"writer {number}")
                for number in range(20)
            )
        )
        won = [answer for answer in answers if answer.status_code == 200]
        assert len(won) == 1
        for answer in answers:
            if answer is not won[0]:
                _assert_conflict(answer, "revision_conflict", "revision")
        assert await _show(gateway, tenant, policy["id"]) == won[0].json()


async def test_revision_counts_accepted_changes(gateway: Gateway, tenant: Tenant) -> None:
    policy = await gateway.make_policy(tenant)
    accepted = 0
    for attempt in range(6):
        revision = 1 + accepted if attempt % 2 == 0 else 99
        answer = await _edit(gateway, tenant, policy["id"], revision, name=f"n{attempt}")
        accepted += answer.status_code == 200
    assert accepted == 3
    assert (await _show(gateway, tenant, policy["id"]))["revision"] == 1 + accepted


# Scope, whether the project is listed, and whether the policy is effective for this project and
# for another project.
_SCOPES = [
    ("organization", False, True, True),
    ("organization", True, True, True),
    ("projects", True, True, False),
    ("unattached", False, False, False),
    ("unattached", True, False, False),
]


@pytest.mark.parametrize(("scope", "listed", "here", "elsewhere"), _SCOPES)
async def test_effective_by_scope(
    gateway: Gateway, tenant: Tenant, scope: str, *, listed: bool, here: bool, elsewhere: bool
) -> None:
    other = await gateway.services.projects.project_create(tenant.organization_id, "other")
    project_ids = [str(tenant.project_id)] if listed else []
    policy = await gateway.make_policy(tenant, scope=scope, project_ids=project_ids)
    await _publish(gateway, tenant, policy["id"], 1)
    entry = {
        "object": "organization.effective_policy",
        "id": policy["id"],
        "name": "No secrets",
        "version": 1,
        "direction": "both",
        "mode": "monitoring",
        "scope": scope,
        "source": "organization",
    }
    for project_id, effective in ((tenant.project_id, here), (other.id, elsewhere)):
        found = await _effective(gateway, tenant, project_id)
        assert found == {"object": "list", "data": [entry] if effective else []}


async def test_effective_by_state(gateway: Gateway, tenant: Tenant) -> None:
    policy = await gateway.make_policy(tenant, mode="enforcing")

    async def versions() -> list[tuple[int, str]]:
        found = await _effective(gateway, tenant, tenant.project_id)
        return [(entry["version"], entry["mode"]) for entry in found["data"]]

    assert await versions() == []
    await _publish(gateway, tenant, policy["id"], 1)
    assert await versions() == [(1, "enforcing")]
    # An edit has no effect before it is published.
    await _edit(gateway, tenant, policy["id"], 2, mode="monitoring", scope="unattached")
    assert await versions() == [(1, "enforcing")]
    await _pause(gateway, tenant, policy["id"], 3)
    assert await versions() == []
    await _resume(gateway, tenant, policy["id"], 4)
    assert await versions() == [(1, "enforcing")]
    await _publish(gateway, tenant, policy["id"], 5)
    assert await versions() == []


async def test_effective_list_of_an_archived_project_is_readable(
    gateway: Gateway, tenant: Tenant
) -> None:
    await gateway.services.projects.project_archive(tenant.organization_id, tenant.project_id)
    found = await _effective(gateway, tenant, tenant.project_id)
    assert found["data"] == []


async def test_project_ids_are_the_organizations_own(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.make_tenant("Other")
    mine, theirs = str(tenant.project_id), str(other.project_id)
    policy = await gateway.make_policy(tenant)
    for foreign in (theirs, "not-a-uuid", "", mine.replace("-", "")):
        param = "project_ids[2]"
        listed = [mine, mine, foreign]
        answer = await _edit(gateway, tenant, policy["id"], 1, project_ids=listed)
        assert_error(answer, 404, "not_found", param)
        body = {"name": "n", "rule": "r?", "project_ids": listed}
        headers = {**tenant.as_admin, **idempotency_key()}
        assert_error(
            await gateway.client.post(_POLICIES, json=body, headers=headers),
            404,
            "not_found",
            param,
        )
    assert await _show(gateway, tenant, policy["id"]) == policy


async def test_project_ids_are_kept_once_each_in_order(gateway: Gateway, tenant: Tenant) -> None:
    second = await gateway.services.projects.project_create(tenant.organization_id, "b")
    ids: list[ProjectId] = [second.id, tenant.project_id]
    given = [str(ids[0]), str(ids[1]).upper(), str(ids[0])]
    policy = await gateway.make_policy(tenant, scope="projects", project_ids=given)
    assert policy["draft"]["project_ids"] == [str(project_id) for project_id in ids]


async def test_an_archived_project_may_be_named(gateway: Gateway, tenant: Tenant) -> None:
    """A policy that names a project must stay editable after the project is archived."""
    await gateway.services.projects.project_archive(tenant.organization_id, tenant.project_id)
    policy = await gateway.make_policy(tenant, project_ids=[str(tenant.project_id)])
    assert policy["draft"]["project_ids"] == [str(tenant.project_id)]
