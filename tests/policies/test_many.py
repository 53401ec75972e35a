"""Tests a thousand policies on one call: concurrency and memory are limited, and all questions share
one prefix."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied, judge_answer, judged_gateway
from tests.support.plain_backend import PlainBackend
from tests.support.tables import each
from tests.support.upstream import Peer, Verb
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import Call, Delta
from tollkeeper.core.port import AnswerReceiver
from tollkeeper.policies.judge.judge import Judge, JudgeConfig, Question
from tollkeeper.policies.judge.slots import JudgeSlots
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.setup.backends import _judge_model
from tollkeeper.setup.settings.backends import BackendSettings

_MANY = 1000
_CONCURRENCY = 8


@pytest.fixture(scope="module")
async def shared_patient(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    limits = {"inference_deadline_s": 100}
    judge = {"deadline_s": 60, "concurrency": _CONCURRENCY}
    window = {"window_characters": 4000, "overlap_characters": 400}
    async with judged_gateway(
        data_dir, conninfo, judge=judge, limits=limits, window=window
    ) as judged:
        yield judged


@pytest.fixture
async def patient(shared_patient: JudgedGateway) -> JudgedGateway:
    return await shared_patient.for_next_test()


def _lingering(basis_points: int) -> Verb:
    """Answers after a pause in which other questions arrive."""

    async def verb(peer: Peer) -> None:
        await asyncio.sleep(0.002)
        await judge_answer(basis_points)(peer)

    return verb


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["request", "response"])
async def test_a_thousand_policies_on_one_call(patient: JudgedGateway, direction: str) -> None:
    policies = await patient.publish_many(_MANY, mode="enforcing", direction=direction)
    patient.judge.opinion = lambda _: _lingering(0)
    text = "All is quiet. " * 200
    patient.say(text)
    found = await patient.chat(text)
    assert found.status_code == 200, found.text
    assert len(patient.judge.asked) == _MANY
    assert len(set(patient.judge.questions)) == _MANY
    assert 1 < patient.judge.at_once_max <= _CONCURRENCY
    # All requests are identical up to the question, so the judge's server can cache one prefix.
    prefixes = {asked.before_question for asked in patient.judge.asked}
    assert len(prefixes) == 1
    assert len(prefixes.pop()) > len(text)
    verdicts = (await patient.entry(found)).verdicts
    assert {verdict.policy_id for verdict in verdicts} == set(policies)
    # The scores are cached, so the judge is not asked about the same text again.
    assert (await patient.chat(text)).status_code == 200
    assert len(patient.judge.asked) == _MANY


async def test_a_thousand_named_policies_watch(patient: JudgedGateway) -> None:
    policies = await patient.publish_many(
        _MANY, mode="monitoring", direction="request", scope="unattached"
    )
    found = await patient.chat(policy_ids=policies)
    assert found.status_code == 200, found.text
    verdicts = (await patient.entry(found)).verdicts
    assert {verdict.policy_id for verdict in verdicts} == set(policies)
    assert len(verdicts) == _MANY


async def test_the_one_of_a_thousand_that_matches_denies(patient: JudgedGateway) -> None:
    await patient.publish_many(300, mode="enforcing", direction="request")
    policy = await patient.enforce("bomb", direction="request")
    assert_denied(await patient.chat("a bomb"), policy, "request")


async def test_windows_come_first_and_questions_second(patient: JudgedGateway) -> None:
    """All questions about a window are asked before the first question about the next window."""
    await patient.publish_many(20, mode="enforcing", direction="request")
    text = "".join(f"{number:07d} " for number in range(2000))
    assert (await patient.chat(text)).status_code == 200
    order = list(dict.fromkeys(asked.before_question for asked in patient.judge.asked))
    places = [order.index(asked.before_question) for asked in patient.judge.asked]
    assert len(order) == 5
    assert len(places) == 5 * 20
    # Only questions that are in flight at the same time may change places.
    displaced = [abs(place - at // 20) for at, place in enumerate(places)]
    assert max(displaced) <= 1
    assert sum(displaced) <= 4 * 2 * _CONCURRENCY


class _CountingBackend(PlainBackend):
    """Answers every question with "No" or fails, and stores only counts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked = 0
        self.bytes = 0
        self._fails = fails

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        receiver.sent = True
        self.asked += 1
        self.bytes += len(ChatWire().encode_request(call, stream=False, extra={}))
        await asyncio.sleep(0)
        if self._fails:
            raise BackendFailed("down")
        position = {"token": "No", "logprob": -0.1}
        logprobs = msgspec.Raw(msgspec.json.encode({"content": [position]}))
        await receiver.take([Delta(0, logprobs=logprobs)])


def _judge(backend: _CountingBackend, **changes: float) -> Judge:
    values = {
        "deadline_s": 60.0,
        "concurrency": 16,
        "window_characters": 40_000,
        "overlap_characters": 4_000,
        "top_logprobs": 20,
        **changes,
    }
    declared = BackendSettings(name="counting", kind="openai", urls=("http://127.0.0.1:9/v1",))
    return Judge(backend, _judge_model(declared, "m"), b"k" * 32, JudgeConfig(**values))  # type: ignore[arg-type]


def _questions(count: int) -> Sequence[Question]:
    return [Question(f"version {number}", f"Is it {number}?") for number in range(count)]


async def test_a_long_text_is_not_copied_for_every_question() -> None:
    backend = _CountingBackend()
    judge, questions = _judge(backend), _questions(_MANY)
    text = "x" * 30_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        opinions = await judge.ask_all(text, questions)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (backend.asked, {opinion.basis_points for opinion in opinions}) == (_MANY, {0})
    assert backend.bytes > _MANY * len(text)
    # The judge sent thirty megabytes, but only a few copies of the text were in memory at a time.
    assert peak - before < 5_000_000


async def test_a_thousand_questions_to_a_judge_that_is_down() -> None:
    backend = _CountingBackend(fails=True)
    opinions = await _judge(backend).ask_all("x" * 200_000, _questions(_MANY))
    assert {opinion.reason for opinion in opinions} == {"down"}
    # A question that failed on the first window is not asked about the other windows.
    assert backend.asked < _MANY + 16


async def test_a_deadline_ends_what_would_take_for_ever() -> None:
    """A thousand questions about megabytes of text end at the deadline, even if all windows are equal
    and most scores are cached."""
    backend = _CountingBackend()
    judge = _judge(backend, deadline_s=0.3, window_characters=1000, overlap_characters=100)
    for text in ("x y z " * 500_000, "".join(f"{number} " for number in range(500_000))):
        opinions = await judge.ask_all(text, _questions(_MANY))
        assert not any(opinion.complete for opinion in opinions)
        assert {opinion.reason for opinion in opinions} == {"The judge did not answer in time."}


async def test_remembered_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.policies.judge.judge._CACHED_MAX", 10)
    backend = _CountingBackend()
    judge = _judge(backend)
    questions = _questions(20)
    await judge.ask_all("text", questions)
    await judge.ask_all("text", questions[10:])
    assert backend.asked == 20
    await judge.ask_all("text", questions[:10])
    assert backend.asked == 30
    assert len(judge._cached) == 10


async def test_an_organization_displaces_mainly_its_own_verdicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise all windows of another organization's conversation would be judged again."""
    monkeypatch.setattr("tollkeeper.policies.judge.judge._CACHED_MAX", 16)
    backend = _CountingBackend()
    judge = _judge(backend)
    flooding, other = OrganizationId(uuid4()), OrganizationId(uuid4())
    await judge.ask_all("conversation", _questions(2), organization_id=other)
    await judge.ask_all("flood", _questions(100), organization_id=flooding)
    assert backend.asked == 102
    await judge.ask_all("conversation", _questions(2), organization_id=other)
    assert backend.asked == 102
    assert len(judge._cached) == 16


async def test_slots_go_to_callers_first_and_one_is_theirs() -> None:
    slots = JudgeSlots(3)
    order: list[str] = []
    go_on = asyncio.Event()

    async def take(name: str, *, watching: bool) -> None:
        async with slots.held(watching=watching):
            order.append(name)
            await go_on.wait()

    watching = [asyncio.create_task(take(f"w{n}", watching=True)) for n in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["w0", "w1"]
    calling = [asyncio.create_task(take(f"c{n}", watching=False)) for n in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["w0", "w1", "c0"]
    go_on.set()
    await asyncio.gather(*watching, *calling)
    assert order[3:5] == ["c1", "c2"]
    assert slots._free == 3
    assert slots._watching_room == 2


@each("watching", [False, True])
async def test_slots_go_round_by_organization(watching: bool) -> None:
    slots = JudgeSlots(1)
    order: list[str] = []

    async def ask(organization: str) -> None:
        async with slots.held(watching=watching, organization=organization):
            order.append(organization)
            await asyncio.sleep(0)

    flood = [asyncio.create_task(ask("hostile")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.create_task(ask("quiet")), *flood)
    assert order.index("quiet") < 5


async def test_slots_survive_those_who_leave() -> None:
    slots = JudgeSlots(1)
    async with slots.held(watching=False):
        waiting = [asyncio.create_task(_held(slots, watching=n % 2 == 0)) for n in range(6)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (slots._free, slots._watching_room) == (1, 1)
    assert not slots._client_queue
    assert not slots._watching_queue


async def _held(slots: JudgeSlots, *, watching: bool) -> None:
    async with slots.held(watching=watching):
        await asyncio.sleep(0)
