"""Tests publishing, pausing and resuming under load, on two gateways with one database: a call is judged
by the version that was in force at its admission. `test_epochs_of_processes` proves it exactly, with
gateways in separate processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.upstream import Peer, answer, completion
from tollkeeper.policies.policy import Policy

_CHANGES = 24
_CALLERS = 4


@dataclass(frozen=True)
class Change:
    """A change that took effect between these times: to a version, or to None if it was a pause."""

    begun: float
    ended: float
    version: int | None


@dataclass(frozen=True)
class Judged:
    """A call that was admitted between these times."""

    begun: float
    ended: float
    request_id: str


@pytest.fixture(scope="module")
async def judged_gateways(data_dir: Path, conninfo: str) -> AsyncIterator[list[JudgedGateway]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(judged_gateway(data_dir, conninfo)) for _ in range(2)
        ]


async def _of_one_tenant(judged_gateways: list[JudgedGateway]) -> list[JudgedGateway]:
    first, second = [await judged.for_next_test() for judged in judged_gateways]
    return [first, replace(second, scripted=replace(second.scripted, tenant=first.scripted.tenant))]


async def _change_on(judged: JudgedGateway, policy: Policy, changes: list[Change]) -> None:
    """Publishes an edited version, pauses and resumes in turn."""
    policies = judged.scripted.gateway.services.policies
    for number in range(_CHANGES):
        begun = monotonic()
        if number % 3 == 0:
            edited = await policies.policy_edit(
                policy.organization_id,
                policy.id,
                policy.revision,
                name=None,
                description=None,
                changes={"rule": f"Is this version {number}?"},
            )
            begun = monotonic()
            policy = await judged.change("publish", edited)
        else:
            policy = await judged.change("pause" if number % 3 == 1 else "resume", policy)
        assert policy.published is not None
        version = None if policy.state == "paused" else policy.published.version
        changes.append(Change(begun, monotonic(), version))
        await asyncio.sleep(0.01)


async def _call_on(judged: JudgedGateway, running: asyncio.Event, calls: list[Judged]) -> None:
    while running.is_set():
        begun = monotonic()
        found = await judged.chat(f"call {len(calls)}")
        assert found.status_code == 200, found.text
        calls.append(Judged(begun, monotonic(), found.headers["x-request-id"]))


def _in_force(call: Judged, changes: list[Change]) -> set[int | None]:
    """Returns the versions that may have been in force at the call's admission; None is a pause."""
    found: set[int | None] = set()
    for at, change in enumerate(changes):
        over = changes[at + 1].ended if at + 1 < len(changes) else call.ended
        if change.begun <= call.ended and over >= call.begun:
            found.add(change.version)
    return found


@pytest.mark.slow
async def test_no_call_is_judged_by_what_was_not_in_force(
    judged_gateways: list[JudgedGateway],
) -> None:
    both = await _of_one_tenant(judged_gateways)
    policy = await both[0].enforce(direction="request")
    changes = [Change(0.0, 0.0, 1)]
    calls: list[Judged] = []
    running = asyncio.Event()
    running.set()
    callers = [
        asyncio.create_task(_call_on(judged, running, calls))
        for judged in both
        for _ in range(_CALLERS)
    ]
    await _change_on(both[0], policy, changes)
    running.clear()
    await asyncio.gather(*callers)
    assert len(calls) > _CHANGES
    for judged in both:
        await judged.entry(calls[0].request_id)  # waits until all records are written
    seen = set()
    for call in calls:
        verdicts = (await both[0].entry(call.request_id)).verdicts
        judged_by = verdicts[0].version if verdicts else None
        assert judged_by in _in_force(call, changes), (call, judged_by, changes)
        seen.add(judged_by)
    assert len(seen) > 3


async def test_a_change_acts_on_the_next_call_of_every_process(
    judged_gateways: list[JudgedGateway],
) -> None:
    both = await _of_one_tenant(judged_gateways)
    policy = await both[0].enforce(direction="request")
    for number in range(6):
        for judged in both:
            assert_denied(await judged.chat(f"bomb {number}"), policy, "request")
        policy = await both[number % 2].change("pause", policy)
        for judged in both:
            assert (await judged.chat(f"bomb {number}")).status_code == 200
        policy = await both[1 - number % 2].change("resume", policy)


async def test_a_running_call_keeps_its_version(judged_gateways: list[JudgedGateway]) -> None:
    """The answer is judged by the policy of the call's admission, although the policy is paused by then."""
    judged, other = await _of_one_tenant(judged_gateways)
    policy = await judged.enforce(direction="both")
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(peer: Peer) -> None:
        asked.set()
        await go_on.wait()
        await answer(completion("a bomb"))(peer)

    judged.model.play(slow)
    calling = asyncio.create_task(judged.chat("question"))
    await asyncio.wait_for(asked.wait(), 20)
    await other.change("pause", policy)
    go_on.set()
    assert_denied(await calling, policy, "response")
    assert (await judged.chat("a bomb")).status_code == 200
