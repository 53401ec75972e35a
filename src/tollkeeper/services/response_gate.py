"""Holds an answer back until a verdict covers it."""

from collections.abc import Sequence
from typing import Protocol

from tollkeeper.domain.inference import Batch, Delta, Event
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import ActivePolicy
from tollkeeper.services.policy_checks import Evidence, PolicyChecks


class Taking(Protocol):
    async def take(self, batch: Batch) -> None: ...


class AnswerText:
    """Everything that an answer says, choice by choice: text, reasoning, refusals, tool calls."""

    def __init__(self) -> None:
        self._choices: dict[int, list[str]] = {}
        self.length = 0

    def add(self, delta: Delta) -> None:
        pieces = [delta.reasoning, delta.text, delta.refusal]
        for call in delta.tool_calls:
            pieces += [call.name, call.arguments]
        if delta.function_call is not None:
            pieces += [delta.function_call.name, delta.function_call.arguments]
        said = [piece for piece in pieces if piece]
        if said:
            self._choices.setdefault(delta.choice, []).extend(said)
            self.length += sum(map(len, said))

    def __str__(self) -> str:
        texts = ["".join(self._choices[choice]) for choice in sorted(self._choices)]
        return "\n\n".join(texts)


class ResponseGate:
    """Between the backend and the caller's sink. With enforcing policies nothing passes before
    it is judged: segment by segment, or as a whole where segments are off. Monitoring policies
    see the whole answer at its end and hold nothing back."""

    def __init__(
        self,
        sink: Taking,
        policies: Sequence[ActivePolicy],
        checks: PolicyChecks,
        evidence: Evidence,
        segment_characters: int,
    ) -> None:
        self._sink = sink
        self._policies = policies
        self._enforcing = [policy for policy in policies if policy.mode is Mode.ENFORCING]
        self._checks = checks
        self._evidence = evidence
        self._segment_characters = segment_characters
        self._text = AnswerText()
        self._judged_length = 0
        self._held: list[Event] = []

    async def take(self, batch: Batch) -> None:
        for event in batch:
            if isinstance(event, Delta):
                self._text.add(event)
        if not self._enforcing:
            await self._sink.take(batch)
            return
        self._held += batch
        waiting = self._text.length - self._judged_length
        if self._segment_characters and waiting >= self._segment_characters:
            await self._judge_and_release(self._enforcing)

    async def finish(self) -> None:
        """The answer is complete: the last segment is judged, and everybody sees the whole."""
        await self._judge_and_release(self._policies)

    async def _judge_and_release(self, policies: Sequence[ActivePolicy]) -> None:
        # Always the answer from its beginning: what is split over two segments is seen whole.
        await self._checks.check(policies, Direction.RESPONSE, str(self._text), self._evidence)
        self._judged_length = self._text.length
        if self._held:
            held, self._held = self._held, []
            await self._sink.take(held)
