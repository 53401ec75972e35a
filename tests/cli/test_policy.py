"""`tollkeeper policy`."""

from typing import Any
from uuid import uuid4

import pytest

from tests.support.gateway import Gateway, Tenant
from tests.support.program import Program


@pytest.fixture
async def draft(gateway: Gateway, tenant: Tenant) -> dict[str, Any]:
    return await gateway.make_policy(tenant, mode="enforcing")


def test_listed_and_shown_as_the_api_shows_it(
    program: Program, tenant: Tenant, draft: dict[str, Any]
) -> None:
    assert program.json("policy", "list", str(tenant.organization_id)) == {"data": [draft]}
    assert program.json("policy", "show", draft["id"]) == draft
    shown = program.run("policy", "show", draft["id"])
    assert "draft.rule" in shown.out


def test_published_paused_and_resumed_by_revision(program: Program, draft: dict[str, Any]) -> None:
    policy = draft["id"]
    published = program.json("policy", "publish", policy, "--revision", "1")
    assert (published["state"], published["revision"]) == ("enforcing", 2)
    assert published["current_version"] == 1
    stale = program.refusal("policy", "pause", policy, "--revision", "1")
    assert stale == "The policy is at revision 2, not 1: read it again."
    paused = program.json("policy", "pause", policy, "--revision", "2")
    assert (paused["state"], paused["revision"]) == ("paused", 3)
    resumed = program.json("policy", "resume", policy, "--revision", "3")
    assert (resumed["state"], resumed["revision"]) == ("enforcing", 4)
    refusal = program.refusal("policy", "resume", policy, "--revision", "4")
    assert refusal == "Only a paused policy can be resumed."


def test_unknown_is_refused(program: Program) -> None:
    unknown = str(uuid4())
    assert program.refusal("policy", "list", unknown) == f"There is no organization {unknown}."
    assert program.refusal("policy", "show", "pol_none") == "There is no policy pol_none."
    for verb in ("publish", "pause", "resume"):
        refusal = program.refusal("policy", verb, "pol_none", "--revision", "1")
        assert refusal == "There is no policy pol_none."
