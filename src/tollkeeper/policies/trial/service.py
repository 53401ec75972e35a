"""Tries a rule on sample texts before it's published, with the same judge."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from tollkeeper.core.errors import InvalidRequest, Unavailable
from tollkeeper.policies.calibration.rule import (
    CONFIDENCE,
    Calibration,
    Fitted,
    guarantees,
    measure,
)
from tollkeeper.policies.judge.judge import Judge, Question
from tollkeeper.policies.policy import Direction, Rule, check_rule
from tollkeeper.policies.texts.json_escapes import with_decoded_escapes
from tollkeeper.policies.texts.transcript import section
from tollkeeper.policies.trial.rule import (
    Bin,
    Sample,
    calibrated,
    histogram,
    labelled,
    labelled_values,
    separate,
)

RULE_LENGTH_MAX = 20_000
TEXTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class TrialText:
    text: str
    # The right answer; None if unknown.
    label: bool | None = None
    # Empty if the text isn't an answer.
    request: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    rule: str
    direction: Direction
    samples: tuple[Sample, ...]
    # Of the first missing score; empty if none is missing.
    missing_reason: str

    @property
    def histogram(self) -> tuple[Bin, ...]:
        return histogram(self.samples)

    def fitted(self) -> Fitted:
        """Raises InvalidRequest with too few labels, or only one kind of label."""
        try:
            return measure(labelled(self.samples))
        except InvalidRequest as exc:
            if not self.missing_reason:
                raise
            raise InvalidRequest(
                f"{exc} Some texts could not be judged: {self.missing_reason}"
            ) from exc

    def calibrated(self, calibration: Calibration) -> "Trial":
        """With probabilities in place of scores."""
        return replace(self, samples=calibrated(self.samples, calibration))

    def calibration_report(self, fitted: Fitted) -> dict[str, Any]:
        """Stored with the calibration that was fitted to this trial."""
        samples = calibrated(self.samples, fitted.calibration)
        separation = separate(samples)
        assert separation is not None, "a calibration is fitted to texts with both labels"
        return {
            **fitted.report(),
            "auc": round(separation.auc, 4),
            # For each threshold, upper limits of the shares of false denials and of misses.
            "guarantees": guarantees(*labelled_values(samples), CONFIDENCE),
        }


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
        """The texts are users' messages or answers (`direction`). `on_progress` gets the number of
        finished texts. Raises Unavailable if not a single one gets a score."""
        _check(rule, texts)
        # New for each trial, because the judge caches scores by key.
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
        )

    async def _samples(
        self, question: Question, texts: Sequence[TrialText], direction: Direction
    ) -> AsyncIterator[tuple[int, Sample, str]]:
        """As the judge answers: the text's index, the sample, and why its score is missing. Asks
        about at most `concurrency` texts at once."""
        concurrency = self._judge.config.concurrency
        waiting: set[asyncio.Task[tuple[int, Sample, str]]] = set()
        try:
            for index, text in enumerate(texts):
                waiting.add(asyncio.create_task(self._sample(question, index, text, direction)))
                # After the last text, this waits for all remaining answers.
                while len(waiting) >= concurrency or (waiting and index == len(texts) - 1):
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for done_task in done:
                        yield done_task.result()
        finally:
            for task in waiting:
                task.cancel()

    async def _sample(
        self, question: Question, index: int, text: TrialText, direction: Direction
    ) -> tuple[int, Sample, str]:
        is_request = direction is Direction.REQUEST and not text.request
        transcript = section("user", text.text) if is_request else with_decoded_escapes(text.text)
        context = section("user", text.request) if text.request else ""
        (opinion,) = await self._judge.ask_all(transcript, [question], context=context)
        if not opinion.complete:
            return index, Sample(text.text, text.label, None), opinion.reason
        return index, Sample(text.text, text.label, opinion.basis_points, opinion.score), ""


def _check(rule: str, texts: Sequence[TrialText]) -> None:
    check_rule(Rule(rule))
    if len(rule) > RULE_LENGTH_MAX:
        raise InvalidRequest(f"A rule has at most {RULE_LENGTH_MAX} characters.", param="rule")
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise InvalidRequest(f"Give 1 to {TEXTS_MAX} texts.", param="texts")
