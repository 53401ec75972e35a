"""Applies policies to a call's request and answer. If an enforcing policy can't be judged, the call
fails. Monitoring policies only record verdicts, and no call waits for them; `watch` means judging
those."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from msgspec.structs import replace

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.activity import VerdictRecord
from tollkeeper.core.errors import PolicyDenied, Unavailable
from tollkeeper.core.runtime.fair_queue import FairTurns
from tollkeeper.policies.judge.judge import Judge, Opinion, Question
from tollkeeper.policies.judge.rule import score_basis_points
from tollkeeper.policies.judge.slots import JudgeLoad
from tollkeeper.policies.metrics import count_missing, count_seconds, count_verdicts
from tollkeeper.policies.policy import Direction, Mode
from tollkeeper.policies.policy_set import ActivePolicy, policies_judging
from tollkeeper.policies.texts.media_text import UnreadKind, UnreadPart
from tollkeeper.policies.watch_room import BackgroundTextLimits

# Of the texts that a process judges in the background. One organization may use seven eighths of
# each. Beyond that, verdicts are recorded as missing. The judge's deadline limits the time per
# text.
_WATCHED_MAX = 1024
_WATCHED_CHARACTERS_MAX = 16_000_000
# Verdicts that a stopping process hasn't got by then are recorded as missing.
_DRAIN_TIMEOUT_S = 3.0
# For background texts. The steps of one iteration of the event loop take under a millisecond.
_VERDICTS_PER_STEP = 64
_STEPS_PER_TURN = 2
_RETRY_AFTER_S = 2
_NO_JUDGE = "No judge is configured."

_log = structlog.get_logger("tollkeeper.policies")


@dataclass(frozen=True, slots=True)
class JudgedContent:
    """For an answer, `context` is the end of the request. `unread` is what the judge can't read."""

    organization_id: OrganizationId
    text: str
    unread: tuple[UnreadPart, ...] = ()
    context: str = ""

    @property
    def length(self) -> int:
        return len(self.text) + len(self.context)

    @property
    def unread_kinds(self) -> tuple[str, ...]:
        return tuple(sorted({part.kind.value for part in self.unread}))


class _Expected(msgspec.Struct, frozen=True):
    """The policies of one mode that are asked about one text."""

    policies: Sequence[ActivePolicy]
    unread: tuple[str, ...]
    asked_at_ms: int


class Evidence(msgspec.Struct):
    """The verdicts of one call. `pending` are the tasks that still make some."""

    # By policy id and direction. `msgspec` copies the empty defaults.
    _verdicts: dict[tuple[str, str], VerdictRecord] = {}
    # By mode and direction.
    _expected: dict[tuple[str, str], _Expected] = {}
    pending: set[asyncio.Task[None]] = set()

    @property
    def verdicts(self) -> tuple[VerdictRecord, ...]:
        """An expected verdict that wasn't made has no probability."""
        missing = [
            VerdictRecord(
                policy_id=policy.id,
                version=policy.version,
                direction=direction,
                mode=mode,
                probability_basis_points=None,
                threshold_basis_points=policy.threshold_basis_points,
                matched=False,
                duration_ms=0,
                judged_at_ms=expected.asked_at_ms,
                unread=expected.unread,
            )
            for (mode, direction), expected in self._expected.items()
            for policy in expected.policies
            if (policy.id, direction) not in self._verdicts
        ]
        return (*self._verdicts.values(), *missing)

    def expect(
        self, policies: Sequence[ActivePolicy], direction: Direction, unread: tuple[str, ...] = ()
    ) -> None:
        """Of the same mode. Once the content is known, a second call replaces the first."""
        key = (policies[0].mode.value, direction.value)
        self._expected[key] = _Expected(policies, unread, _now_ms())

    def take(self, verdicts: Iterable[VerdictRecord]) -> None:
        """When an answer is judged again as it arrives, the new verdict replaces the old one but
        keeps the highest probability and adds up the durations. If the new one is missing, there's
        no probability."""
        for verdict in verdicts:
            key = (verdict.policy_id, verdict.direction)
            earlier = self._verdicts.get(key)
            self._verdicts[key] = (
                verdict if earlier is None else _combined_verdict(earlier, verdict)
            )

    async def wait_until_complete(self) -> None:
        """The judge's deadline limits this."""
        if self.pending:
            await asyncio.wait(self.pending)


def _combined_verdict(earlier: VerdictRecord, verdict: VerdictRecord) -> VerdictRecord:
    probability = verdict.probability_basis_points
    if probability is not None:
        probability = max(probability, earlier.probability_basis_points or 0)
    return replace(
        verdict,
        probability_basis_points=probability,
        duration_ms=earlier.duration_ms + verdict.duration_ms,
        first_basis_points=_higher(earlier.first_basis_points, verdict.first_basis_points),
    )


def _higher(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class FirstJudge:
    """A small judge that is asked first. If its score is below `limit_basis_points` (the setting
    `settles_below_basis_points`) and the policy's threshold, the policy doesn't match and the main
    judge isn't asked. It never decides that a policy matches."""

    judge: Judge
    limit_basis_points: int

    def rules_out(self, policy: ActivePolicy, opinion: Opinion) -> bool:
        if not opinion.complete or opinion.basis_points is None:
            return False
        return opinion.basis_points < min(self.limit_basis_points, policy.threshold_basis_points)


class PolicyChecks:
    def __init__(
        self,
        judge: Judge | None,
        *,
        first: FirstJudge | None = None,
        denied_unread: frozenset[UnreadKind] = frozenset(),
    ) -> None:
        """If an enforcing policy applies, `denied_unread` content rejects the call."""
        self._judge = judge
        self._first = first
        self._denied_unread = denied_unread
        self._started_checks: dict[asyncio.Task[None], JudgedContent] = {}
        # Of monitoring policies.
        self._watching: set[asyncio.Task[None]] = set()
        self._room = BackgroundTextLimits()
        # For background texts; organizations take turns.
        self._turns = FairTurns(_STEPS_PER_TURN)

    async def check(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent,
        evidence: Evidence,
    ) -> None:
        """Raises PolicyDenied if an enforcing policy matches, and Unavailable if one can't be
        judged. Monitoring policies are only started, so they neither delay the call nor make it
        fail."""
        self.watch(policies, direction, content, evidence)
        enforcing = _of_mode(Mode.ENFORCING, policies, direction)
        if not enforcing:
            return
        evidence.expect(enforcing, direction, content.unread_kinds)
        self._refuse_unread(enforcing[0], direction, content)
        verdicts = await self._verdicts(enforcing, direction, content)
        evidence.take(verdicts)
        for policy, verdict in zip(enforcing, verdicts, strict=True):
            if verdict.matched:
                raise PolicyDenied(f"{_policy_label(policy)} denied this {direction.value}.")
        for policy, verdict in zip(enforcing, verdicts, strict=True):
            if verdict.probability_basis_points is None:
                raise Unavailable(
                    f"{_policy_label(policy)} could not be judged.", retry_after_s=_RETRY_AFTER_S
                )

    def start_check(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent,
        evidence: Evidence,
    ) -> asyncio.Task[None] | None:
        """None if no enforcing policy applies, because the call has nothing to wait for."""
        if not _of_mode(Mode.ENFORCING, policies, direction):
            self.watch(policies, direction, content, evidence)
            return None
        task = asyncio.create_task(self.check(policies, direction, content, evidence))
        self._started_checks[task] = content
        evidence.pending.add(task)
        task.add_done_callback(evidence.pending.discard)
        task.add_done_callback(self._started_checks.pop)
        return task

    def call_ended(self, check: asyncio.Task[None]) -> None:
        """Call this when a started check's call has ended. If there's room, the check goes on in
        the background and its verdicts are recorded. Otherwise they're missing."""
        content = self._started_checks.get(check)
        if content is None:
            return
        if self._take_room(content):
            check.add_done_callback(lambda _: self._give_room_back(content))
        else:
            check.cancel()

    def watch(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent | Callable[[], Awaitable[JudgedContent]],
        evidence: Evidence,
    ) -> None:
        """Starts the monitoring policies and returns at once. If `content` raises Unavailable, or
        there are too many background texts, the verdicts are recorded as missing."""
        monitoring = _of_mode(Mode.MONITORING, policies, direction)
        if not monitoring:
            return
        evidence.expect(monitoring, direction)
        task = asyncio.create_task(self._watch(monitoring, direction, content, evidence))
        self._watching.add(task)
        evidence.pending.add(task)
        task.add_done_callback(evidence.pending.discard)
        task.add_done_callback(self._watch_ended)

    @property
    def context_characters(self) -> int:
        """How much of the request the judge sees with the answer."""
        return 0 if self._judge is None else self._judge.config.context_characters

    @property
    def judge_load(self) -> JudgeLoad | None:
        """None without a judge."""
        return None if self._judge is None else self._judge.load

    @property
    def judging(self) -> int:
        """Texts judged outside the task of their call."""
        return len(self._watching) + len(self._started_checks)

    async def drain(self) -> None:
        """After `_DRAIN_TIMEOUT_S`, cancels what's left."""
        waiting = [*self._watching, *self._started_checks]
        if not waiting:
            return
        _, unfinished = await asyncio.wait(waiting, timeout=_DRAIN_TIMEOUT_S)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    async def _watch(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent | Callable[[], Awaitable[JudgedContent]],
        evidence: Evidence,
    ) -> None:
        mode = Mode.MONITORING.value
        try:
            if not isinstance(content, JudgedContent):
                content = await content()
            evidence.expect(policies, direction, content.unread_kinds)
            self._require_room(content)
        except Unavailable as error:
            count_missing(mode, direction.value, len(policies))
            _log.warning("verdicts are missing", count=len(policies), reason=str(error))
            return
        except BaseException:
            count_missing(mode, direction.value, len(policies))
            raise
        try:
            evidence.take(await self._verdicts(policies, direction, content))
        finally:
            self._give_room_back(content)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("judging the monitoring policies failed", exc_info=error)

    def _take_room(self, content: JudgedContent) -> bool:
        return self._room.take(
            content.organization_id,
            content.length,
            texts_max=_WATCHED_MAX,
            characters_max=_WATCHED_CHARACTERS_MAX,
        )

    def _require_room(self, content: JudgedContent) -> None:
        if not self._take_room(content):
            raise Unavailable("Too many texts are being judged at once.")

    def _give_room_back(self, content: JudgedContent) -> None:
        self._room.give_back(content.organization_id, content.length)

    def _refuse_unread(
        self, policy: ActivePolicy, direction: Direction, content: JudgedContent
    ) -> None:
        for part in content.unread:
            if part.kind in self._denied_unread:
                kind = part.kind.value.replace("_", " ")
                raise PolicyDenied(
                    f"{_policy_label(policy)} denied this {direction.value}: the judge cannot read its {kind}.",
                    param=part.place or None,
                )

    async def _verdicts(
        self, policies: Sequence[ActivePolicy], direction: Direction, content: JudgedContent
    ) -> list[VerdictRecord]:
        """One per policy, all of the same mode. It has no probability without a judge, if the judge
        is down or late, or if its answer can't be read."""
        mode = policies[0].mode
        started = time.perf_counter()
        try:
            opinions = await self._ask_judge(policies, content, watching=mode is Mode.MONITORING)
            seconds = time.perf_counter() - started
            verdicts = await self._records(policies, direction, content, opinions)
        except BaseException:
            count_missing(mode.value, direction.value, len(policies))
            raise
        count_verdicts(verdicts)
        count_seconds(mode.value, direction.value, seconds)
        _log_missing(verdicts, opinions)
        return verdicts

    async def _records(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent,
        opinions: Sequence[Opinion],
    ) -> list[VerdictRecord]:
        unread, watching = content.unread_kinds, policies[0].mode is Mode.MONITORING
        verdicts: list[VerdictRecord] = []
        for start in range(0, len(policies), _VERDICTS_PER_STEP):
            if watching:
                await self._turns.turn(content.organization_id)
            now_ms, part = _now_ms(), slice(start, start + _VERDICTS_PER_STEP)
            verdicts += [
                _record(policy, direction, opinion, unread, now_ms)
                for policy, opinion in zip(policies[part], opinions[part], strict=True)
            ]
        return verdicts

    async def _ask_judge(
        self, policies: Sequence[ActivePolicy], content: JudgedContent, *, watching: bool
    ) -> list[Opinion]:
        if self._judge is None:
            return [Opinion(reason=_NO_JUDGE) for _ in policies]

        async def ask(
            judge: Judge, asked_policies: Sequence[ActivePolicy], ask_deadline: float
        ) -> list[Opinion]:
            return await judge.ask_all(
                content.text,
                [Question(policy.version_id, policy.rule) for policy in asked_policies],
                context=content.context,
                watching=watching,
                organization_id=content.organization_id,
                deadline=ask_deadline,
            )

        now, deadline_s = asyncio.get_running_loop().time(), self._judge.config.deadline_s
        if watching:
            await self._turns.turn(content.organization_id)
        if self._first is None:
            return await ask(self._judge, policies, now + deadline_s)
        # Half of the time, so the main judge can still decide if the first one is down or late.
        opinions = await ask(self._first.judge, policies, now + deadline_s / 2)
        undecided: list[int] = []
        for index, (policy, opinion) in enumerate(zip(policies, opinions, strict=True)):
            opinion.first_score = opinion.score if opinion.complete else None
            opinion.is_ruled_out_by_first_judge = self._first.rules_out(policy, opinion)
            if not opinion.is_ruled_out_by_first_judge:
                undecided.append(index)
        main_opinions = await ask(
            self._judge, [policies[index] for index in undecided], now + deadline_s
        )
        for index, opinion in zip(undecided, main_opinions, strict=True):
            opinion.first_score = opinions[index].first_score
            opinion.seconds += opinions[index].seconds
            opinions[index] = opinion
        return opinions


def _of_mode(
    mode: Mode, policies: Sequence[ActivePolicy], direction: Direction
) -> list[ActivePolicy]:
    return [policy for policy in policies_judging(policies, direction) if policy.mode is mode]


def _policy_label(policy: ActivePolicy) -> str:
    return f"The policy {policy.name!r} ({policy.id})"


def _now_ms() -> int:
    return int(time.time() * 1000)


def _record(
    policy: ActivePolicy,
    direction: Direction,
    opinion: Opinion,
    unread: tuple[str, ...],
    now_ms: int,
) -> VerdictRecord:
    threshold = policy.threshold_basis_points
    first = None if opinion.first_score is None else score_basis_points(opinion.first_score)
    probability = None if opinion.score is None else policy.basis_points(opinion.score)
    if opinion.is_ruled_out_by_first_judge:
        # Calibrations fit only the main judge's scores.
        probability = first
    matched = probability is not None and probability >= threshold
    if not opinion.complete and not matched:
        # The part that the judge hasn't read could have a higher probability.
        probability = None
    return VerdictRecord(
        policy_id=policy.id,
        version=policy.version,
        direction=direction.value,
        mode=policy.mode.value,
        probability_basis_points=probability,
        threshold_basis_points=threshold,
        matched=matched,
        duration_ms=int(opinion.seconds * 1000),
        judged_at_ms=now_ms,
        unread=unread,
        first_basis_points=first,
    )


def _log_missing(verdicts: Sequence[VerdictRecord], opinions: Sequence[Opinion]) -> None:
    """One line for all, with the first one's reason."""
    missing = [
        (verdict, opinion)
        for verdict, opinion in zip(verdicts, opinions, strict=True)
        if verdict.probability_basis_points is None
    ]
    if missing:
        verdict, opinion = missing[0]
        _log.warning(
            "verdicts are missing",
            count=len(missing),
            mode=verdict.mode,
            direction=verdict.direction,
            policy=verdict.policy_id,
            reason=opinion.reason,
        )
