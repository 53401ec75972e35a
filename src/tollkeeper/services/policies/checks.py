"""Applies an organization's policies to the request and the answer of one call. The judge (a model)
answers each policy's question about the text.

Enforcing policies decide whether the call continues; if one of them cannot be judged, the call
fails. Monitoring policies only record their verdicts (results), and the call does not wait for
their verdicts. In names, `watch` means to judge monitoring policies.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from msgspec.structs import replace

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.activity import VerdictRecord
from tollkeeper.domain.errors import PolicyDenied, Unavailable
from tollkeeper.domain.judging import score_basis_points
from tollkeeper.domain.media_text import UnreadKind, UnreadPart
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import ActivePolicy, policies_judging
from tollkeeper.runtime.fair_queue import FairTurns
from tollkeeper.services.policies.judge import Judge, Opinion, Question
from tollkeeper.services.policies.judge_slots import JudgeLoad
from tollkeeper.services.policies.metrics import count_missing, count_seconds, count_verdicts
from tollkeeper.services.policies.watch_room import BackgroundTextLimits

# Limits for the texts that one process judges in the background, for which no client waits: the
# number of texts, and the sum of their characters. One organization may use seven eighths of each
# limit. If a limit is reached, the verdicts on a further text are recorded as missing. The judge's
# deadline limits the time for each text.
_WATCHED_MAX = 1024
_WATCHED_CHARACTERS_MAX = 16_000_000
# The time for which a stopping process waits for verdicts. Verdicts that have not arrived by then
# are recorded as missing.
_DRAIN_TIMEOUT_S = 3.0
# Verdicts on background texts are made in steps of this many verdicts, and at most
# `_STEPS_PER_TURN` steps run in one iteration of the event loop. They take less than a millisecond.
_VERDICTS_PER_STEP = 64
_STEPS_PER_TURN = 2
_RETRY_AFTER_S = 2
_NO_JUDGE = "No judge is configured."

_log = structlog.get_logger("tollkeeper.policies")


@dataclass(frozen=True, slots=True)
class JudgedContent:
    """Contains the text that the judge reads: the request or the answer of one call. `unread` are
    the parts that the judge cannot read, for example images. If the text is an answer, `context` is
    the end of the request."""

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
    """Contains the policies of one mode that are asked about the request or the answer of a
    call."""

    policies: Sequence[ActivePolicy]
    unread: tuple[str, ...]
    asked_at_ms: int


class Evidence(msgspec.Struct):
    """Stores the verdicts of one call. Each policy has at most one verdict on the request and one
    on the answer. `pending` contains the tasks that still produce verdicts."""

    # By policy id and direction. `msgspec` copies the empty defaults for each object.
    _verdicts: dict[tuple[str, str], VerdictRecord] = {}
    # By mode and direction.
    _expected: dict[tuple[str, str], _Expected] = {}
    pending: set[asyncio.Task[None]] = set()

    @property
    def verdicts(self) -> tuple[VerdictRecord, ...]:
        """Returns the verdicts. An expected verdict that has not been made is missing: it has no
        probability."""
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
        """Notes that these policies, which have the same mode, are asked about the request or the
        answer, and which kinds of its content the judge cannot read. A later call, when the content is
        known, replaces an earlier one."""
        key = (policies[0].mode.value, direction.value)
        self._expected[key] = _Expected(policies, unread, _now_ms())

    def take(self, verdicts: Iterable[VerdictRecord]) -> None:
        """Adds verdicts. If an answer is judged several times while it arrives, a later verdict
        replaces the earlier verdict, but keeps the highest probability so far and the sum of the
        durations. If the later verdict is missing, the probability becomes None."""
        for verdict in verdicts:
            key = (verdict.policy_id, verdict.direction)
            earlier = self._verdicts.get(key)
            self._verdicts[key] = (
                verdict if earlier is None else _combined_verdict(earlier, verdict)
            )

    async def wait_until_complete(self) -> None:
        """Waits for the pending verdicts. The judge's deadline limits this wait."""
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
    """Holds a small judge that is asked before the main judge. If this judge's score is below both
    `limit_basis_points` (the setting `settles_below_basis_points`) and the policy's threshold,
    the policy does not match, and the main judge is not asked. The first judge never decides that a
    policy matches."""

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
        """`denied_unread` are kinds of content that the judge cannot read. A call with content of
        these kinds is rejected if an enforcing policy applies to the call."""
        self._judge = judge
        self._first = first
        self._denied_unread = denied_unread
        # The running tasks of `start_check`, each with the content that it judges.
        self._started_checks: dict[asyncio.Task[None], JudgedContent] = {}
        # The running tasks of monitoring policies.
        self._watching: set[asyncio.Task[None]] = set()
        self._room = BackgroundTextLimits()
        # The steps of the work for background texts. Organizations take turns.
        self._turns = FairTurns(_STEPS_PER_TURN)

    async def check(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        content: JudgedContent,
        evidence: Evidence,
    ) -> None:
        """Judges the content. Raises PolicyDenied if an enforcing policy matches, and Unavailable
        if an enforcing policy cannot be judged. Monitoring policies are only started (`watch`), so
        they neither delay the call nor make it fail."""
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
        """Starts `check` in its own task and returns the task. If no enforcing policy applies, only
        starts the monitoring policies and returns None, because the call has nothing to wait
        for."""
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
        """Must be called when the call of a started check has ended. If the limits for background
        texts allow one more text, the check continues, so that its verdicts are recorded. Otherwise
        the check is cancelled, and its verdicts are recorded as missing."""
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
        """Starts a task that judges the monitoring policies among `policies`, and returns at once.
        The task calls `content` if it is a function. If this function raises Unavailable, or if the
        limits for background texts are reached, the verdicts are recorded as missing."""
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
        """Returns the maximum number of characters of the request that the judge sees together with
        the answer."""
        return 0 if self._judge is None else self._judge.config.context_characters

    @property
    def judge_load(self) -> JudgeLoad | None:
        """Returns None if no judge is configured."""
        return None if self._judge is None else self._judge.load

    @property
    def judging(self) -> int:
        """Returns the number of texts that are being judged in a task of their own, outside the
        task of their call."""
        return len(self._watching) + len(self._started_checks)

    async def drain(self) -> None:
        """Waits up to `_DRAIN_TIMEOUT_S` for the tasks that judge texts, then cancels the remaining
        tasks."""
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
        """Returns one verdict for each policy. All policies must have the same mode. A verdict is
        missing (has no probability) if no judge is configured, if the judge is down or late, or if
        the judge's answer cannot be read."""
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
        # The first judge gets half of the time, so that the main judge can still decide if the
        # first judge is down or late.
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
        # The calibration of a policy fits only scores of the main judge, so the first judge's score
        # is used uncalibrated.
        probability = first
    matched = probability is not None and probability >= threshold
    if not opinion.complete and not matched:
        # The judge has not read the whole text. The unread part could have a higher probability.
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
    """Writes one log line for all missing verdicts, with the reason for the first missing
    verdict."""
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
