"""Tests that the background work of a thousand policies is done in small steps, so that the event loop
can serve other calls in between."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.plain_backend import PlainBackend
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.activity import VerdictRecord
from tollkeeper.core.inference import Call, Delta
from tollkeeper.core.port import AnswerReceiver
from tollkeeper.policies.checks import Evidence, JudgedContent, PolicyChecks
from tollkeeper.policies.judge.judge import Judge, JudgeConfig, Question, _ScoreCache
from tollkeeper.policies.policy import Direction, Mode, Scope
from tollkeeper.policies.policy_set import ActivePolicy
from tollkeeper.setup.backends import _judge_model
from tollkeeper.setup.settings.backends import BackendSettings

_MANY = 1000
_TEXTS = 8
_ORGANIZATION = OrganizationId(uuid4())
_NO = msgspec.Raw(msgspec.json.encode({"content": [{"token": "No", "logprob": -0.1}]}))


class _QuickBackend(PlainBackend):
    """Answers every question with "No" in the next iteration of the event loop."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        receiver.sent = True
        self.asked += 1
        await asyncio.sleep(0)
        await self.may_answer.wait()
        await receiver.take([Delta(0, logprobs=_NO)])


def _judge(backend: _QuickBackend) -> Judge:
    declared = BackendSettings(name="quick", kind="openai", urls=("http://127.0.0.1:9/v1",))
    config = JudgeConfig(deadline_s=60, concurrency=64, top_logprobs=20)
    return Judge(backend, _judge_model(declared, "m"), b"k" * 32, config)


def _policies() -> list[ActivePolicy]:
    return [
        ActivePolicy(
            id=f"pol_{number}",
            name=f"Policy {number}",
            version=1,
            version_id=f"polv_{number}",
            rule=f"Is it {number}?",
            direction=Direction.REQUEST,
            mode=Mode.MONITORING,
            scope=Scope.ORGANIZATION,
            project_ids=frozenset(),
            threshold_basis_points=5000,
        )
        for number in range(_MANY)
    ]


async def _largest_step(count: Callable[[], int], work: Awaitable[Any]) -> int:
    """Does the work, and returns the largest increase of the count in one iteration of the event
    loop."""
    task = asyncio.ensure_future(work)
    largest = 0
    while not task.done():
        before = count()
        await asyncio.sleep(0)
        largest = max(largest, count() - before)
    await task
    return largest


async def _ask_about_texts(judge: Judge) -> None:
    questions = [Question(f"version {number}", f"Is it {number}?") for number in range(_MANY)]
    await asyncio.gather(
        *(
            judge.ask_all(f"text {number}", questions, watching=True, organization_id=_ORGANIZATION)
            for number in range(_TEXTS)
        )
    )


async def test_a_few_questions_start_at_a_time() -> None:
    backend = _QuickBackend()
    assert await _largest_step(lambda: backend.asked, _ask_about_texts(_judge(backend))) <= 4
    assert backend.asked == _MANY * _TEXTS


async def test_cached_scores_are_read_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _QuickBackend()
    judge = _judge(backend)
    await _ask_about_texts(judge)
    read = 0
    get = _ScoreCache.get

    def counted(cache: _ScoreCache, *key: Any) -> float | None:
        nonlocal read
        read += 1
        return get(cache, *key)

    monkeypatch.setattr(_ScoreCache, "get", counted)
    assert await _largest_step(lambda: read, _ask_about_texts(judge)) <= 4 * 64
    assert (read, backend.asked) == (_MANY * _TEXTS, _MANY * _TEXTS)


async def test_verdicts_are_made_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(**fields: Any) -> Any:
        nonlocal made
        made += 1
        return VerdictRecord(**fields)

    monkeypatch.setattr("tollkeeper.policies.checks.VerdictRecord", counted)
    checks, policies = PolicyChecks(_judge(_QuickBackend())), _policies()
    evidences = [Evidence() for _ in range(_TEXTS)]
    for number, evidence in enumerate(evidences):
        content = JudgedContent(_ORGANIZATION, f"text {number}")
        checks.watch(policies, Direction.REQUEST, content, evidence)
    # The call does not wait for the verdicts, so it makes no records of them.
    assert made == 0
    complete = asyncio.gather(*(evidence.wait_until_complete() for evidence in evidences))
    assert await _largest_step(lambda: made, complete) <= 2 * 64
    assert made == _MANY * _TEXTS
    for evidence in evidences:
        assert [verdict.probability_basis_points for verdict in evidence.verdicts] == [0] * _MANY


async def test_verdicts_that_are_not_made_are_missing() -> None:
    checks, policies = PolicyChecks(_judge(_QuickBackend())), _policies()
    evidence = Evidence()
    checks.watch(policies, Direction.REQUEST, JudgedContent(_ORGANIZATION, "text"), evidence)
    (task,) = evidence.pending
    task.cancel()
    await evidence.wait_until_complete()
    assert [verdict.policy_id for verdict in evidence.verdicts] == [
        policy.id for policy in policies
    ]
    assert {verdict.probability_basis_points for verdict in evidence.verdicts} == {None}


async def test_texts_wait_with_one_question_each_while_no_slot_is_free() -> None:
    backend = _QuickBackend()
    backend.may_answer.clear()
    judge = _judge(backend)
    asked = [asyncio.create_task(_ask_about_texts(judge)) for _ in range(2)]
    for _ in range(500):
        await asyncio.sleep(0)
    # One organization can have seven eighths of the 64 slots.
    in_use, waiting = judge.load.slots_in_use, judge.load.monitoring_waiting
    asked.append(asyncio.create_task(_ask_about_texts(judge)))
    for _ in range(500):
        await asyncio.sleep(0)
    assert in_use == judge.load.slots_in_use == 56
    assert judge.load.monitoring_waiting == waiting + _TEXTS
    backend.may_answer.set()
    await asyncio.gather(*asked)
