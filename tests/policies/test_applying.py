"""Which policies apply: every state, mode, direction and scope, and what a request may add."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.gateway import assert_error
from tests.policies.court import Court, assert_denied
from tests.upstream import chat
from tollkeeper.domain.policy import Policy

_LIVES = ("draft", "published", "paused", "resumed")
_MODES = ("monitoring", "enforcing")


@dataclass(frozen=True)
class Reach:
    """A scope as it lies to the project that calls, and whether the call names the policy."""

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
    court: Court, reach: Reach, direction: str
) -> None:
    """All of them side by side, each with a word of its own that only one call says."""
    fields = {
        "direction": direction,
        "scope": reach.scope,
        "project_ids": await _projects(court, reach.projects),
    }
    cells = [
        Cell(life, mode, await _live(court, life, word=f"{life}-{mode}", mode=mode, **fields))
        for life in _LIVES
        for mode in _MODES
    ]
    answers = [await _call(court, cell, reach) for cell in cells]
    for cell, answer in zip(cells, answers, strict=True):
        await _check(court, cell, answer, reach, direction)


@dataclass(frozen=True)
class Cell:
    life: str
    mode: str
    policy: Policy

    @property
    def is_published(self) -> bool:
        return self.life in ("published", "resumed")


async def _live(court: Court, life: str, **fields: Any) -> Policy:
    policy = await court.draft(**fields)
    verbs = {"draft": (), "published": ("publish",), "paused": ("publish", "pause")}
    for verb in verbs.get(life, ("publish", "pause", "resume")):
        policy = await court.change(verb, policy)
    return policy


async def _projects(court: Court, which: str) -> list[str]:
    tenant, services = court.lab.tenant, court.lab.gateway.services
    other = await services.projects.project_create(tenant.organization_id, "other")
    ids = {"own": [tenant.project_id], "other": [other.id], "none": []}
    return [str(found) for found in ids.get(which, [other.id, tenant.project_id])]


async def _call(court: Court, cell: Cell, reach: Reach) -> httpx2.Response:
    word = f"{cell.life}-{cell.mode}"
    court.say(f"{word} in the answer")
    named = {"policy_ids": [cell.policy.id]} if reach.named else {}
    return await court.chat(f"{word} in the question", **named)


async def _check(
    court: Court, cell: Cell, answer: httpx2.Response, reach: Reach, direction: str
) -> None:
    if reach.named and not cell.is_published:
        assert_error(answer, 404, "not_found", "policy_ids[0]")
        assert ("is paused" in answer.json()["error"]["message"]) == (cell.life == "paused")
        assert await court.lab.entry(answer.headers["x-request-id"]) is None
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
        for verdict in (await court.entry(answer)).verdicts
        if verdict.policy_id == cell.policy.id
    ]
    assert sorted(verdict.direction for verdict in verdicts) == sides
    for verdict in verdicts:
        assert (verdict.version, verdict.mode, verdict.matched) == (1, cell.mode, True)


async def test_each_policy_is_asked_once(court: Court) -> None:
    attached = await court.publish("one", direction="request")
    named = await court.publish("two", direction="request", scope="unattached")
    answer = await court.chat(policy_ids=[named.id, attached.id] * 500)
    assert answer.status_code == 200, answer.text
    entry = await court.entry(answer)
    assert sorted(verdict.policy_id for verdict in entry.verdicts) == sorted(
        [attached.id, named.id]
    )
    assert sorted(court.judge.questions) == ["Does it say one?", "Does it say two?"]


async def test_naming_can_add_and_never_remove(court: Court) -> None:
    denying = await court.enforce(direction="request")
    other = await court.publish("other", scope="unattached")
    for named in ([], [other.id], [denying.id], [other.id, denying.id]):
        assert_denied(await court.chat("bomb", policy_ids=named), denying, "request")


@pytest.mark.parametrize("which", ["unknown", "provider", "draft", "foreign", "paused"])
async def test_a_wrong_name_is_refused_before_money_moves(court: Court, which: str) -> None:
    good = await court.publish("fine", scope="unattached")
    other = await court.with_tenant()
    named = {
        "unknown": f"pol_{uuid4().hex}",
        "provider": "omni-moderation-latest",
        "draft": (await court.draft(scope="unattached")).id,
        "foreign": (await other.publish(scope="organization")).id,
        "paused": (await court.change("pause", await court.publish())).id,
    }[which]
    court.model.play(chat())
    before = len(court.model.requests)
    answer = await court.chat(policy_ids=[good.id, named])
    assert_error(answer, 404, "not_found", "policy_ids[1]")
    message = answer.json()["error"]["message"]
    assert named in message
    assert ("paused" in message) == (which == "paused")
    assert await court.lab.entries() == []
    assert len(court.model.requests) == before
    assert court.judge.asked == []


@pytest.mark.parametrize("named", [["x"] * 1001, [""], ["x" * 121], [1], "pol_1", None])
async def test_a_list_of_names_has_its_bounds(court: Court, named: object) -> None:
    answer = await court.chat(policy_ids=named)
    assert answer.status_code == 400, answer.text
    assert await court.lab.entries() == []


async def test_without_policies_nobody_is_asked(court: Court) -> None:
    other = await court.with_tenant()
    await other.enforce()
    assert (await court.chat("bomb")).status_code == 200
    assert court.judge.asked == []
    assert (await court.entry(await court.chat("bomb"))).verdicts == ()
