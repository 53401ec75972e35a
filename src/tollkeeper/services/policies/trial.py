"""Tries a rule on sample texts before it becomes a policy, with the judge that policies use."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from tollkeeper.domain.errors import InvalidRequest, Unavailable
from tollkeeper.domain.policy import Direction, Rule, check_rule
from tollkeeper.domain.transcript import section
from tollkeeper.domain.trial import Bin, Calibration, Sample, calibrate, histogram
from tollkeeper.services.policies.judge import Judge, Question

RULE_LENGTH_MAX = 20_000
TEXTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class TrialText:
    text: str
    label: bool | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    rule: str
    direction: Direction
    samples: tuple[Sample, ...]
    # Why probabilities are missing: the first reason that the judge gave.
    missing_reason: str
    histogram: tuple[Bin, ...]
    calibration: Calibration | None


class PolicyTrial:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def try_rule(
        self,
        rule: str,
        texts: Sequence[TrialText],
        *,
        direction: Direction = Direction.REQUEST,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Trial:
        """Asks about each text as if it were a user's message, or an answer. `on_progress` is called
        with the number of texts that are done. Raises Unavailable where no text gets an answer."""
        _check(rule, texts)
        # A new key for each trial, so that no cached probability of another one is used.
        question = Question(f"trial_{uuid4().hex}", rule)
        samples: list[Sample | None] = [None] * len(texts)
        reasons: list[str] = []
        done = 0
        async for index, sample, reason in self._samples(question, texts, direction):
            samples[index] = sample
            if sample.probability_basis_points is None:
                reasons.append(reason)
            done += 1
            on_progress(done)
        if len(reasons) == len(texts):
            raise Unavailable(f"The judge answered nothing: {reasons[0]}")
        done_samples = tuple(sample for sample in samples if sample is not None)
        return Trial(
            rule=rule,
            direction=direction,
            samples=done_samples,
            missing_reason=reasons[0] if reasons else "",
            histogram=histogram(done_samples),
            calibration=calibrate(done_samples),
        )

    async def _samples(
        self, question: Question, texts: Sequence[TrialText], direction: Direction
    ) -> AsyncIterator[tuple[int, Sample, str]]:
        """Yields the samples in the order in which they are answered, each with its index and the
        reason for a missing probability. Asks as many at a time as the judge takes."""
        concurrency = self._judge.config.concurrency
        waiting: set[asyncio.Task[tuple[int, Sample, str]]] = set()
        try:
            for index, text in enumerate(texts):
                waiting.add(asyncio.create_task(self._sample(question, index, text, direction)))
                while len(waiting) >= concurrency or (waiting and index == len(texts) - 1):
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for answered in done:
                        yield answered.result()
        finally:
            for task in waiting:
                task.cancel()

    async def _sample(
        self, question: Question, index: int, text: TrialText, direction: Direction
    ) -> tuple[int, Sample, str]:
        transcript = section("user", text.text) if direction is Direction.REQUEST else text.text
        (opinion,) = await self._judge.ask_all(transcript, [question])
        probability = opinion.highest if opinion.complete else None
        return index, Sample(text.text, text.label, probability), opinion.reason


def _check(rule: str, texts: Sequence[TrialText]) -> None:
    check_rule(Rule(rule))
    if len(rule) > RULE_LENGTH_MAX:
        raise InvalidRequest(f"A rule has at most {RULE_LENGTH_MAX} characters.", param="rule")
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise InvalidRequest(f"Give 1 to {TEXTS_MAX} texts.", param="texts")
