"""Tests publishing, pausing and resuming under load, on two gateways in separate processes.

A database trigger records, with every new reservation, which version of the policy is in force at that
moment. Afterwards, each call's request and answer must have been judged by exactly that version: no
paused policy judges, and no published version is missed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString, Self
from uuid import UUID

import psycopg
import pytest

from tests.support.databases import own_database
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.judged_gateway import UNLIKELY, ScriptedJudge
from tests.support.scripted_gateway import ScriptedGateway, eventually
from tests.support.upstream import Upstream, chat
from tollkeeper.policies.policies import Policies
from tollkeeper.policies.policy import Policy

pytestmark = pytest.mark.slow

_ROUNDS = 6
_CALLERS = 4
# The calls on each gateway between two changes: one more than can be in flight at once, so that at
# least one call is admitted between the changes.
_CALLS_BETWEEN = _CALLERS + 1
_NOTE_ADMISSIONS: LiteralString = """
    CREATE TABLE admissions (request_id uuid PRIMARY KEY, version integer);
    CREATE FUNCTION note_admission() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO admissions SELECT NEW.id, (
            SELECT current_version FROM policies
            WHERE organization_id = NEW.organization_id AND state NOT IN ('draft', 'paused'));
        RETURN NEW;
    END $$;
    CREATE TRIGGER note_admission BEFORE INSERT ON reservations
        FOR EACH ROW EXECUTE FUNCTION note_admission();
"""
_ADMISSIONS: LiteralString = "SELECT request_id, version FROM admissions"
_VERDICTS: LiteralString = "SELECT request_id, direction, version FROM policy_verdicts"


class Callers:
    """Makes calls on each gateway while the block runs, `_CALLERS` at once."""

    def __init__(self, scripted_gateways: list[ScriptedGateway]) -> None:
        self._scripted_gateways = scripted_gateways
        self._wanted = True
        self.request_ids: list[list[str]] = [[] for _ in scripted_gateways]

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._call(scripted, made))
            for scripted, made in zip(self._scripted_gateways, self.request_ids, strict=True)
            for _ in range(_CALLERS)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wanted = False
        await asyncio.gather(*self._tasks)

    async def _call(self, scripted: ScriptedGateway, made: list[str]) -> None:
        while self._wanted:
            found = await scripted.chat(messages=[{"role": "user", "content": f"call {len(made)}"}])
            assert found.status_code == 200, found.text
            made.append(found.headers["x-request-id"])

    async def more(self) -> None:
        """Waits until every gateway has answered `_CALLS_BETWEEN` more calls."""
        goals = [len(made) + _CALLS_BETWEEN for made in self.request_ids]
        await eventually(self._reached(goals), within_s=120)

    def _reached(self, goals: list[int]) -> Callable[[], bool]:
        def reached() -> bool:
            if any(task.done() for task in self._tasks):
                raise AssertionError("a caller ended before its time")
            return all(
                len(made) >= goal for made, goal in zip(self.request_ids, goals, strict=True)
            )

        return reached


async def _published(services: Policies, policy: Policy, number: int) -> Policy:
    edited = await services.policy_edit(
        policy.organization_id,
        policy.id,
        policy.revision,
        name=None,
        description=None,
        changes={"rule": f"Is this version {number}?"},
    )
    return await services.policy_publish(edited.organization_id, edited.id, edited.revision)


async def _paused(at: ScriptedGateway, services: Policies, policy: Policy) -> Policy:
    """Pauses the policy over a gateway's API. The operator's services make all other changes."""
    found = await at.gateway.client.post(
        f"/v1/organization/policies/{policy.id}/pause",
        json={"revision": policy.revision},
        headers=at.tenant.as_admin,
    )
    assert found.status_code == 200, found.text
    return await services.policy_show(policy.organization_id, policy.id)


async def _under_changes(
    installed: InstalledProgram, scripted_gateways: list[ScriptedGateway]
) -> Callers:
    services = installed.services.policies
    draft = await scripted_gateways[0].gateway.make_policy(
        scripted_gateways[0].tenant, mode="enforcing", direction="both"
    )
    organization = scripted_gateways[0].tenant.organization_id
    policy = await services.policy_show(organization, draft["id"])
    policy = await services.policy_publish(organization, policy.id, policy.revision)
    async with Callers(scripted_gateways) as callers:
        for number in range(_ROUNDS):
            await callers.more()
            policy = await _published(services, policy, number)
            await callers.more()
            policy = await _paused(scripted_gateways[number % 2], services, policy)
            await callers.more()
            policy = await services.policy_resume(organization, policy.id, policy.revision)
        await callers.more()
    return callers


async def test_every_call_is_judged_by_what_was_in_force_at_its_admission(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    own = own_database(conninfo, "epochs")
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute(_NOTE_ADMISSIONS)
    async with Upstream(chat()) as model, ScriptedJudge() as judge:
        judge.opinion = lambda _: UNLIKELY
        changes: dict[str, Any] = {
            "backends": [
                {"name": "scripted", "kind": "openai", "urls": [model.url]},
                {"name": "judge", "kind": "openai", "urls": [judge.url]},
            ],
            "judge": {"backend": "judge", "model": "the-judge", "deadline_s": 50},
        }
        async with installed_program(
            tmp_path, data_dir, own, model, compiled, **changes
        ) as installed:
            async with AsyncExitStack() as gateways:
                served = await asyncio.gather(
                    *(gateways.enter_async_context(installed.serving()) for _ in range(2))
                )
                scripted_gateways = [
                    replace(scripted, tenant=served[0][1].tenant) for _, scripted in served
                ]
                callers = await _under_changes(installed, scripted_gateways)
            # The gateways have ended, so all their records are written.
            _check(own, callers)


def _check(conninfo: str, callers: Callers) -> None:
    with psycopg.connect(conninfo) as connection:
        in_force: dict[UUID, int | None] = dict(connection.execute(_ADMISSIONS).fetchall())
        judged_by: dict[UUID, dict[str, int]] = defaultdict(dict)
        for request_id, direction, version in connection.execute(_VERDICTS):
            judged_by[request_id][direction] = version
    for made in callers.request_ids:
        seen = set()
        for request_id in map(UUID, made):
            version = in_force[request_id]
            expected = {} if version is None else {"request": version, "response": version}
            assert judged_by[request_id] == expected, (request_id, version)
            seen.add(version)
        # Each gateway has served calls under every version, and during a pause.
        assert seen == {None, *range(1, _ROUNDS + 2)}
