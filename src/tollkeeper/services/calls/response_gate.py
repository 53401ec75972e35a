"""Holds an answer back until verdicts cover it."""

import asyncio
from collections.abc import Sequence

from tollkeeper.domain.inference import Batch, Delta, Event
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import ActivePolicy
from tollkeeper.domain.transcript import AnswerText
from tollkeeper.services.calls.running import AnswerSink
from tollkeeper.services.policies.checks import Evidence, PolicyChecks


class ResponseGate:
    """Between the backend and the caller's sink. With enforcing policies nothing passes before
    it is judged: segment by segment, or as a whole where segments are off. Monitoring policies
    see the answer at its end, whatever that is, and hold nothing back."""

    def __init__(
        self,
        sink: AnswerSink,
        policies: Sequence[ActivePolicy],
        checks: PolicyChecks,
        evidence: Evidence,
        *,
        segment_characters: int,
        request_verdict: asyncio.Task[None] | None = None,
    ) -> None:
        """`request_verdict` is still on its way where it is awaited beside the backend."""
        self._sink = sink
        self._policies = policies
        self._enforcing = [policy for policy in policies if policy.mode is Mode.ENFORCING]
        self._checks = checks
        self._evidence = evidence
        self._segment_characters = segment_characters
        self._request_verdict = request_verdict
        self._text = AnswerText()
        self._judged_length = 0
        self._held: list[Event] = []
        self._is_holding = False
        self._finished = False

    async def take(self, batch: Batch) -> None:
        if self._policies:
            for event in batch:
                if isinstance(event, Delta):
                    self._text.add(event)
        if not self._enforcing and self._request_verdict is None:
            await self._sink.take(batch)
            return
        self._hold(batch)
        if self._may_release():
            await self._judge_and_release(self._enforcing)

    async def finish(self) -> None:
        """The answer is complete: the last segment is judged, and everybody sees the whole."""
        await self._request_is_cleared()
        self._finished = True
        await self._judge_and_release(self._policies)

    def close(self) -> None:
        """The call has ended. Of an answer that broke off, what had come is still watched."""
        if not self._finished and self._text.length:
            self._checks.watch(self._policies, Direction.RESPONSE, str(self._text), self._evidence)

    def _hold(self, batch: Batch) -> None:
        self._held += batch
        if not self._is_holding:
            self._is_holding = True
            self._sink.held_back()

    def _may_release(self) -> bool:
        if not self._enforcing:
            assert self._request_verdict is not None
            return self._request_verdict.done()
        waiting = self._text.length - self._judged_length
        return 0 < self._segment_characters <= waiting

    async def _request_is_cleared(self) -> None:
        if self._request_verdict is not None:
            # Shielded: who waits may be stopped, but a verdict is evidence also then.
            await asyncio.shield(self._request_verdict)
            self._request_verdict = None

    async def _judge_and_release(self, policies: Sequence[ActivePolicy]) -> None:
        await self._request_is_cleared()
        if policies:
            # Always the answer from its beginning: what is split over two segments is seen whole.
            await self._checks.check(policies, Direction.RESPONSE, str(self._text), self._evidence)
            self._judged_length = self._text.length
        if self._held:
            held, self._held = self._held, []
            await self._sink.take(held)
