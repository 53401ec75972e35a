"""Policies at work on one call: enforcing ones decide and fail closed, monitoring ones only watch."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from tollkeeper.backends.judge import Judge, Question
from tollkeeper.domain.activity import VerdictRecord
from tollkeeper.domain.errors import PolicyDenied, TollkeeperError, Unavailable
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import ActivePolicy

# Monitoring verdicts under way in one process; beyond it they are recorded as missing.
_MONITORING_MAX = 512

_log = structlog.get_logger("tollkeeper.policies")


@dataclass(slots=True)
class Evidence:
    """The verdicts of one call, as they come in; monitoring ones may still be on their way."""

    verdicts: list[VerdictRecord] = field(default_factory=list)
    pending: set[asyncio.Task[None]] = field(default_factory=set)

    async def settled(self) -> None:
        """Returns when every verdict is in. The judge's own deadline bounds the wait."""
        if self.pending:
            await asyncio.wait(self.pending)


class PolicyChecks:
    def __init__(self, judge: Judge | None) -> None:
        self._judge = judge
        self._monitoring: set[asyncio.Task[None]] = set()

    async def check(
        self,
        policies: Sequence[ActivePolicy],
        direction: Direction,
        text: str,
        evidence: Evidence,
    ) -> None:
        """Raises PolicyDenied where an enforcing policy matches, and Unavailable where one of them
        cannot be judged. Monitoring policies neither delay nor fail anything."""
        judging = [policy for policy in policies if policy.judges(direction)]
        for policy in judging:
            if policy.mode is Mode.MONITORING:
                self._monitor(policy, direction, text, evidence)
        enforcing = [policy for policy in judging if policy.mode is Mode.ENFORCING]
        if not enforcing:
            return
        verdicts = await asyncio.gather(
            *(self._verdict(policy, direction, text) for policy in enforcing)
        )
        evidence.verdicts += verdicts
        for policy, verdict in zip(enforcing, verdicts, strict=True):
            if verdict.matched:
                raise PolicyDenied(
                    f"The policy {policy.name!r} ({policy.id}) denied this {direction.value}."
                )
        for policy, verdict in zip(enforcing, verdicts, strict=True):
            if verdict.probability_basis_points is None:
                raise Unavailable(
                    f"The policy {policy.name!r} ({policy.id}) could not be judged.",
                    retry_after_s=2,
                )

    async def drain(self) -> None:
        if self._monitoring:
            await asyncio.wait(self._monitoring)

    def _monitor(
        self, policy: ActivePolicy, direction: Direction, text: str, evidence: Evidence
    ) -> None:
        if len(self._monitoring) >= _MONITORING_MAX:
            evidence.verdicts.append(_record(policy, direction, None, 0.0))
            return
        task = asyncio.create_task(self._watch(policy, direction, text, evidence))
        for tasks in (self._monitoring, evidence.pending):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _watch(
        self, policy: ActivePolicy, direction: Direction, text: str, evidence: Evidence
    ) -> None:
        evidence.verdicts.append(await self._verdict(policy, direction, text))

    async def _verdict(
        self, policy: ActivePolicy, direction: Direction, text: str
    ) -> VerdictRecord:
        """A verdict without probability where the judge is absent, down, late or unreadable."""
        started = time.perf_counter()
        probability = None
        if self._judge is not None:
            try:
                probability = await self._judge.probability(
                    text, Question(policy.version_id, policy.rule)
                )
            except TollkeeperError as exc:
                _log.warning("a verdict is missing", policy=policy.id, reason=exc.message)
        return _record(policy, direction, probability, time.perf_counter() - started)


def _record(
    policy: ActivePolicy, direction: Direction, probability: int | None, seconds: float
) -> VerdictRecord:
    return VerdictRecord(
        policy_id=policy.id,
        version=policy.version,
        direction=direction.value,
        mode=policy.mode.value,
        probability_basis_points=probability,
        threshold_basis_points=policy.threshold_basis_points,
        matched=probability is not None and probability >= policy.threshold_basis_points,
        duration_ms=int(seconds * 1000),
    )
