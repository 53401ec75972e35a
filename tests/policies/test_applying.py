"""Tests which policies apply to a call, for every state, mode, direction and scope, and for policies
that the request names."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, assert_denied
from tests.support.upstream import chat
from tollkeeper.policies.policy import Policy

_LIVES = ("draft", "published", "paused", "resumed")
_MODES = ("monitoring", "enforcing")


@dataclass(frozen=True)
class Reach:
    """Describes how a policy's scope relates to the calling project, and whether the call names the
    policy."""

    scope: str
    projects: str = "none"
    named: bool = False

    @property
    def attached(self) -> bool:
        return self.scope == "organization" or self.projects in ("own", "both")


_REACHES = [
    Reach("organization"),
    Reach("projects", "own"),
    Reach("projects", "other"),
    Reach("projects", "both"),
    Reach("unattached"),
    Reach("unattached", named=True),
    Reach("organization", named=True),
    Reach("projects", "other", named=True),
]


@pytest.mark.parametrize("direction", ["request", "response", "both"])
@pytest.mark.parametrize("reach", _REACHES, ids=repr)
async def test_every_state_mode_direction_and_scope(
    judged: JudgedGateway, reach: Reach, direction: str
) -> None:
    """The policies of all states and modes exist side by side. Each looks for its own word, which only
    one call contains."""
    fields = {
        "direction": direction,
        "scope": reach.scope,
        "project_ids": await _projects(judged, reach.projects),
    }
    cells = [
        Cell(life, mode, await _live(judged, life, word=f"{life}-{mode}", mode=mode, **fields))
        for life in _LIVES
        for mode in _MODES
    ]
    answers = [await _call(judged, cell, reach) for cell in cells]
    for cell, answer in zip(cells, answers, strict=True):
        await _check(judged, cell, answer, reach, direction)


@dataclass(frozen=True)
class Cell:
    life: str
    mode: str
    policy: Policy

    @property
    def is_published(self) -> bool:
        return self.life in ("published", "resumed")


async def _live(judged: JudgedGateway, life: str, **fields: Any) -> Policy:
    policy = await judged.draft(**fields)
    verbs = {"draft": (), "published": ("publish",), "paused": ("publish", "pause")}
    for verb in verbs.get(life, ("publish", "pause", "resume")):
        policy = await judged.change(verb, policy)
    return policy


async def _projects(judged: JudgedGateway, which: str) -> list[str]:
    tenant, services = judged.scripted.tenant, judged.scripted.gateway.services
    other = await services.projects.project_create(tenant.organization_id, "other")
    ids = {"own": [tenant.project_id], "other": [other.id], "none": []}
    return [str(found) for found in ids.get(which, [other.id, tenant.project_id])]


async def _call(judged: JudgedGateway, cell: Cell, reach: Reach) -> httpx2.Response:
    word = f"{cell.life}-{cell.mode}"
    judged.say(f"{word} in the answer")
    named = {"policy_ids": [cell.policy.id]} if reach.named else {}
    return await judged.chat(f"{word} in the question", **named)


async def _check(
    judged: JudgedGateway, cell: Cell, answer: httpx2.Response, reach: Reach, direction: str
) -> None:
    if reach.named and not cell.is_published:
        assert_error(answer, 404, "not_found", "policy_ids[0]")
        assert ("is paused" in answer.json()["error"]["message"]) == (cell.life == "paused")
        assert await judged.scripted.entry(answer.headers["x-request-id"]) is None
        return
    applies = cell.is_published and (reach.attached or reach.named)
    sides = {"both": ["request", "response"]}.get(direction, [direction]) if applies else []
    if applies and cell.mode == "enforcing":
        assert_denied(answer, cell.policy, sides[0])
        sides = sides[:1]  # a denied request has no answer to judge
    else:
        assert answer.status_code == 200, answer.text
    verdicts = [
        verdict
        for verdict in (await judged.entry(answer)).verdicts
        if verdict.policy_id == cell.policy.id
    ]
    assert sorted(verdict.direction for verdict in verdicts) == sides
    for verdict in verdicts:
        assert (verdict.version, verdict.mode, verdict.matched) == (1, cell.mode, True)


async def test_each_policy_is_asked_once(judged: JudgedGateway) -> None:
    attached = await judged.publish("one", direction="request")
    named = await judged.publish("two", direction="request", scope="unattached")
    answer = await judged.chat(policy_ids=[named.id, attached.id] * 500)
    assert answer.status_code == 200, answer.text
    entry = await judged.entry(answer)
    assert sorted(verdict.policy_id for verdict in entry.verdicts) == sorted(
        [attached.id, named.id]
    )
    assert sorted(judged.judge.questions) == ["Does it say one?", "Does it say two?"]


async def test_naming_can_add_and_never_remove(judged: JudgedGateway) -> None:
    denying = await judged.enforce(direction="request")
    other = await judged.publish("other", scope="unattached")
    for named in ([], [other.id], [denying.id], [other.id, denying.id]):
        assert_denied(await judged.chat("bomb", policy_ids=named), denying, "request")


@pytest.mark.parametrize("which", ["unknown", "provider", "draft", "foreign", "paused"])
async def test_a_wrong_name_is_refused_before_money_moves(
    judged: JudgedGateway, which: str
) -> None:
    good = await judged.publish("fine", scope="unattached")
    other = await judged.with_tenant()
    named = {
        "unknown": f"pol_{uuid4().hex}",
        "provider": "omni-moderation-latest",
        "draft": (await judged.draft(scope="unattached")).id,
        "foreign": (await other.publish(scope="organization")).id,
        "paused": (await judged.change("pause", await judged.publish())).id,
    }[which]
    judged.model.play(chat())
    before = len(judged.model.requests)
    answer = await judged.chat(policy_ids=[good.id, named])
    assert_error(answer, 404, "not_found", "policy_ids[1]")
    message = answer.json()["error"]["message"]
    assert named in message
    assert ("paused" in message) == (which == "paused")
    assert await judged.scripted.entries() == []
    assert len(judged.model.requests) == before
    assert judged.judge.asked == []


async def test_the_position_of_a_wrong_name_counts_repeated_names(judged: JudgedGateway) -> None:
    good = await judged.publish("fine", scope="unattached")
    answer = await judged.chat(policy_ids=[good.id, good.id, "pol_missing"])
    assert_error(answer, 404, "not_found", "policy_ids[2]")


@pytest.mark.parametrize("named", [["x"] * 1001, [""], ["x" * 121], [1], "pol_1", None])
async def test_a_list_of_names_has_its_bounds(judged: JudgedGateway, named: object) -> None:
    answer = await judged.chat(policy_ids=named)
    assert answer.status_code == 400, answer.text
    assert await judged.scripted.entries() == []


async def test_without_policies_nobody_is_asked(judged: JudgedGateway) -> None:
    other = await judged.with_tenant()
    await other.enforce()
    assert (await judged.chat("bomb")).status_code == 200
    assert judged.judge.asked == []
    assert (await judged.entry(await judged.chat("bomb"))).verdicts == ()


async def test_a_denial_names_the_policy_as_it_was_published(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    policies = judged.scripted.gateway.services.policies
    edited = await policies.policy_edit(
        policy.organization_id,
        policy.id,
        policy.revision,
        name="New name",
        description=None,
        changes={},
    )
    assert_denied(await judged.chat("bomb"), policy, "request")
    published = await judged.change("publish", edited)
    assert published.name == "New name"
    assert_denied(await judged.chat("bomb"), published, "request")
