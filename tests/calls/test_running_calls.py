"""Tests running calls. Calls use the same alarm one after the other, and a request to end one call never
ends another call."""

import asyncio
from unittest.mock import Mock
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tests.support.backend_calls import MODEL, make_call
from tollkeeper.calls.admission import Admission
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.calls.tab import SETTLEMENT_S_MIN, SettlementState, Tab
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.inference import Batch
from tollkeeper.core.runtime.overload import OverloadGate
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.rule import ADMITTED, Decision
from tollkeeper.money.holds.values import Hold

_PLAN = Mock(spec=Plan)
_LIMITS = InferenceLimits(deadline_s=60, drain_s=10, drains_max=10, calls_max=10)


class _Sink:
    async def take(self, batch: Batch) -> None: ...

    def held_back(self) -> None: ...

    def text_writer(self) -> None: ...


@pytest.fixture
async def calls() -> RunningCalls:
    return RunningCalls(_LIMITS, OverloadGate(60))


def _begin(calls: RunningCalls) -> Tab:
    return calls.begin(make_call(), _PLAN, _Sink(), "chat_create")


def _begin_admitted(calls: RunningCalls) -> Tab:
    running = _begin(calls)
    running.hold = Mock(spec=Hold)
    return running


def _now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_wait_ends_when_somebody_wants_the_call_to_end(calls: RunningCalls) -> None:
    running = _begin_admitted(calls)
    asyncio.get_running_loop().call_soon(running.end_by, _now())
    with pytest.raises(TimeoutError), running.waiting_until(running.deadline):
        await asyncio.sleep(20)


async def test_a_later_wait_has_its_slack_only(calls: RunningCalls) -> None:
    running = _begin_admitted(calls)
    wanted = _now()
    running.end_by(wanted)
    with pytest.raises(TimeoutError), running.waiting_until(running.deadline):
        await asyncio.sleep(20)
    running.state = SettlementState.UNSETTLED
    with running.waiting_until(running.deadline) as alarm:
        assert alarm.when == wanted + SETTLEMENT_S_MIN


async def test_a_client_that_leaves_does_not_delay_the_end_of_a_stopped_call(
    calls: RunningCalls,
) -> None:
    running = _begin_admitted(calls)
    stopped_at = _now()
    running.end_by(stopped_at)
    calls.abandon(running)
    assert running.ends_by == stopped_at


async def test_the_wait_for_admission_is_not_shortened(calls: RunningCalls) -> None:
    """The gateway must learn whether the hold was written, even if the client has left."""
    plan = Plan(Mock(), MODEL, Mock(counts_tokens=False))
    running = calls.begin(make_call(), plan, _Sink(), "chat_create")

    async def hold(_hold: Hold) -> Decision:
        running.end_at_once()
        await asyncio.sleep(0.01)
        return ADMITTED

    await Admission(Mock(spec=Ledger, hold=hold, excesses=Mock(of=lambda _: ()))).hold(
        running, None
    )
    assert running.hold is not None


async def test_who_leaves_after_the_end_of_its_call_ends_no_other_one(
    calls: RunningCalls,
) -> None:
    running = _begin_admitted(calls)
    with running.waiting_until(running.deadline):
        pass
    calls.end(running)
    another = _begin_admitted(calls)
    assert another.alarm is running.alarm
    with another.waiting_until(another.deadline):
        calls.abandon(running)
        running.end_by(_now())
        await asyncio.sleep(0.01)
    calls.end(another)


async def test_nothing_is_kept_of_owners_without_calls() -> None:
    gate = OverloadGate(60)
    calls = RunningCalls(_LIMITS, gate)
    for _ in range(20):
        call = replace(make_call(), organization_id=OrganizationId(uuid4()))
        running = [calls.begin(call, _PLAN, _Sink(), "chat_create") for _ in range(2)]
        assert running[0].alarm is not running[1].alarm
        with running[0].judging():
            assert gate.active_calls == 1
        assert gate.active_calls == 2
        for tab in running:
            calls.end(tab)
    assert gate.active_calls == 0
    assert gate.owners == {}


async def test_one_organization_does_not_have_all_calls_that_are_read_on() -> None:
    """The gateway stops reading the further abandoned calls of such an organization at once. They also
    take no place from other organizations."""
    limits = InferenceLimits(deadline_s=60, drain_s=10, drains_max=8, calls_max=100)
    calls = RunningCalls(limits, OverloadGate(60))
    hostile, quiet = (OrganizationId(uuid4()) for _ in range(2))

    def leave(organization_id: OrganizationId) -> tuple[Tab, bool]:
        running = calls.begin(
            replace(make_call(), organization_id=organization_id), _PLAN, _Sink(), "chat_create"
        )
        calls.abandon(running)
        with running.waiting_until(running.deadline) as alarm:
            assert alarm.when is not None
            return running, alarm.when > _now() + 1

    left = [leave(hostile) for _ in range(50)]
    assert [is_read_on for _, is_read_on in left] == [True] * 7 + [False] * 43
    assert leave(quiet)[1]
    # All places are taken now. Any organization can use a place that becomes free, but only once.
    assert not leave(quiet)[1]
    calls.abandon(left[0][0])
    calls.end(left[0][0])
    calls.abandon(left[0][0])
    assert leave(hostile)[1]
    assert not leave(hostile)[1]
    assert not leave(quiet)[1]
