"""Holds an answer back until the enforcing policies have judged it."""

import asyncio
from collections.abc import Sequence

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.inference import Batch, Delta, Event, Opened
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import ActivePolicy
from tollkeeper.domain.transcript import AnswerText
from tollkeeper.services.calls.tab import AnswerSink
from tollkeeper.services.policies.checks import Evidence, JudgedContent, PolicyChecks


class ResponseGate:
    """Passes events from the backend to the client's sink. With enforcing policies, an event is
    passed on only after its text is judged: segment by segment, or all at the end without segments.
    Monitoring policies get the answer at its end, complete or not, and delay nothing."""

    def __init__(
        self,
        sink: AnswerSink,
        policies: Sequence[ActivePolicy],
        checks: PolicyChecks,
        evidence: Evidence,
        *,
        organization_id: OrganizationId,
        segment_characters: int,
        context: str = "",
        request_verdict: asyncio.Task[None] | None = None,
    ) -> None:
        """`context` is the end of the request, which the judge sees together with the answer.
        `request_verdict` is the check of the request, if it runs while the backend answers. Nothing
        is passed on before it ends."""
        self._sink = sink
        self._policies = policies
        self._enforcing = [policy for policy in policies if policy.mode is Mode.ENFORCING]
        self._checks = checks
        self._evidence = evidence
        self._organization_id = organization_id
        self._segment_characters = segment_characters
        self._context = context
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
                elif isinstance(event, Opened):
                    self._text.open(event)
        if not self._enforcing and self._request_verdict is None:
            await self._sink.take(batch)
            return
        self._hold(batch)
        if self._may_release():
            await self._judge_and_release(self._enforcing)

    async def finish(self) -> None:
        """Ends a complete answer: all policies get the whole of it, and the rest is passed on."""
        await self._await_request_verdict()
        self._finished = True
        await self._judge_and_release(self._policies)

    def close(self) -> None:
        """Ends the call. Monitoring policies still get the received part of an incomplete
        answer."""
        if not self._finished and (self._text.length or self._text.unread):
            self._checks.watch(self._policies, Direction.RESPONSE, self._content(), self._evidence)
        if self._request_verdict is not None:
            self._checks.call_ended(self._request_verdict)

    @property
    def is_enforcing(self) -> bool:
        return bool(self._enforcing)

    def _content(self) -> JudgedContent:
        return JudgedContent(
            self._organization_id, str(self._text), self._text.unread, self._context
        )

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

    async def _await_request_verdict(self) -> None:
        if self._request_verdict is not None:
            # Shielded: if the call is cancelled here, the check continues, because its verdicts are
            # recorded even for a cancelled call.
            await asyncio.shield(self._request_verdict)
            self._request_verdict = None

    async def _judge_and_release(self, policies: Sequence[ActivePolicy]) -> None:
        await self._await_request_verdict()
        if policies:
            # The judge always gets the answer from its beginning, so that it also sees text that is
            # split over two segments.
            await self._checks.check(policies, Direction.RESPONSE, self._content(), self._evidence)
            self._judged_length = self._text.length
        if self._held:
            held, self._held = self._held, []
            await self._sink.take(held)
