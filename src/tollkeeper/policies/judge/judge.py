"""Asks the judge yes-or-no questions about a text, and scores how much it tends to "yes".

The judge answers with one token, and the score comes from the log-probabilities of "yes" and "no".
This module knows nothing about policies: a question is a key and a text, and an opinion is a score
or the reason why there's none.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from uuid import UUID

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.affinity import CachePurpose, isolated_text
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import BackendFailed, ProviderRejected, TollkeeperError
from tollkeeper.core.inference import Call, Delta, UsageReport
from tollkeeper.core.metering import read_usage
from tollkeeper.core.port import Backend, EventCollector
from tollkeeper.core.prompt import CachingWish, Logprobs, Prompt, Sampling
from tollkeeper.core.runtime.fair_queue import FairTurns, share
from tollkeeper.core.runtime.timeouts import timeout_at
from tollkeeper.core.usage import NO_REPORT, Usage, merged
from tollkeeper.policies.judge.rule import (
    EXAMPLES,
    Example,
    Quotation,
    context_of,
    read_score,
    score_basis_points,
    window_count,
    windows,
)
from tollkeeper.policies.judge.slots import JudgeLoad, JudgeSlots

# Takes organization, judge's model, usage (None: not reported) and reported picousd (or 0).
JudgeMeter: TypeAlias = Callable[[OrganizationId, Model, Usage | None, int], None]


def unmetered(_organization: OrganizationId, _model: Model, _usage: Usage | None, _: int) -> None:
    """Counts nothing."""


_NO_ID = UUID(int=0)
_NO_PROJECT = ProjectId(_NO_ID)
# For questions of an operator who tries a rule or checks the judge.
_OPERATOR = OrganizationId(_NO_ID)
_CACHED_MAX = 20_000
# A rejected window may be too long for the judge, so it's halved down to this many characters.
_HALVED_LENGTH_MIN = 400
# In hexadecimal digits; see `Window.quotation`.
_FENCE_LENGTH = 16
# Between two steps of reading cached scores, other tasks run. For watching askers, the steps of one
# iteration of the event loop take under a millisecond.
_SCORES_PER_STEP = 64
_WATCHING_STEPS = 2
# From here on, processing the prompt takes the backend longer than a round trip. So one question
# goes first, and the others find their common prefix in the backend's cache.
_WARM_UP_LENGTH_MIN = 1000
_TIMED_OUT = "The judge did not answer in time."
_NO_PROBABILITY = "The judge's answer has no probability of yes and no."
_NO_LOGPROBS = (
    "The judge's answer has no log-probabilities: the backend must support logprobs "
    "and top_logprobs for judging."
)


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    # For all questions about one text together.
    deadline_s: float
    # Questions that this process asks at once.
    concurrency: int
    # "yes" and "no" must be among them.
    top_logprobs: int
    # How much of the request the judge sees with the answer.
    context_characters: int = 0
    examples: tuple[Example, ...] = EXAMPLES
    # Longer texts are judged in overlapping windows, and the highest score counts.
    window_characters: int = 4000
    overlap_characters: int = 400


class Question(msgspec.Struct, frozen=True, gc=False):
    """A key always has the same text, so scores are cached by key: it's the id of a published, so
    immutable, policy version, or new for each trial."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Asker:
    """`watching`: no client waits for the answers."""

    organization_id: OrganizationId
    watching: bool
    # Of the event loop's clock.
    deadline: float


class Opinion(msgspec.Struct, gc=False):
    """The garbage collector ignores these: hundreds of thousands may wait for the judge, and none
    is in a cycle."""

    # The highest log-odds of "yes" of all windows read so far.
    score: float | None = None
    # All windows are read.
    complete: bool = False
    # Why it isn't.
    reason: str = ""
    # Until the question was answered or failed.
    seconds: float = 0.0
    # If a first judge has read all windows. It may be so low that the main judge isn't asked.
    first_score: float | None = None
    is_ruled_out_by_first_judge: bool = False

    @property
    def basis_points(self) -> int | None:
        return None if self.score is None else score_basis_points(self.score)


class _ScoreCache:
    """An organization with over seven eighths displaces its own scores, never all of the
    others'."""

    def __init__(self) -> None:
        # By question and window. The least recently used organization and score come first.
        self._scores: OrderedDict[OrganizationId, OrderedDict[tuple[str, bytes], float]]
        self._scores = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, organization_id: OrganizationId, key: tuple[str, bytes]) -> float | None:
        scores = self._scores.get(organization_id)
        if scores is None or key not in scores:
            return None
        self._scores.move_to_end(organization_id)
        scores.move_to_end(key)
        return scores[key]

    def put(self, organization_id: OrganizationId, key: tuple[str, bytes], score: float) -> None:
        scores = self._scores.setdefault(organization_id, OrderedDict())
        self._scores.move_to_end(organization_id)
        self._count += key not in scores
        scores[key] = score
        if self._count > _CACHED_MAX:
            is_over = len(scores) > share(_CACHED_MAX)
            owner = organization_id if is_over else next(iter(self._scores))
            self._scores[owner].popitem(last=False)
            self._count -= 1
            if not self._scores[owner]:
                del self._scores[owner]


class Judge:
    """Asks questions about texts, and caches the scores."""

    def __init__(
        self,
        backend: Backend,
        model: Model,
        secret: bytes,
        config: JudgeConfig,
        meter: JudgeMeter = unmetered,
    ) -> None:
        self._backend = backend
        self._model = model
        self._secret = secret
        self.config = config
        self._meter = meter
        self._slots = JudgeSlots(config.concurrency)
        self._cached = _ScoreCache()
        # For watching askers that read cached scores; organizations take turns.
        self._turns = FairTurns(_WATCHING_STEPS)

    @property
    def load(self) -> JudgeLoad:
        return self._slots.load

    async def ask_all(
        self,
        text: str,
        questions: Sequence[Question],
        *,
        context: str = "",
        watching: bool = False,
        organization_id: OrganizationId = _OPERATOR,
        deadline: float | None = None,
    ) -> list[Opinion]:
        """In the order of the questions. `deadline` is on the event loop's clock; None means
        `config.deadline_s` from now. If the judge is down or late or unreadable, the opinion says
        so. `context` is the request that the text answers: the judge sees its end, but the question
        is only about the text. Questions with `watching` come after those that a client waits for.
        Organizations take turns."""
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self.config.deadline_s
        asker = Asker(organization_id, watching, deadline)
        shown_context = context_of(context, self.config.context_characters)
        run = _QuestionRun(self, text, shown_context, questions, asker)
        try:
            with timeout_at(deadline):
                await run.run()
        except TimeoutError:
            run.give_up(_TIMED_OUT)
        return run.opinions

    def windows(self, text: str, context: str) -> Iterator["Window"]:
        config = self.config
        for section in windows(text, config.window_characters, config.overlap_characters):
            yield Window(section, self._secret, config.examples, context)

    def questions_at_once(self, asker: Asker) -> int:
        """Only as many as there are free slots for a watching asker, so not all its questions
        queue."""
        if not asker.watching:
            return self.config.concurrency
        return self._slots.free_for_watching(asker.organization_id)

    async def let_others_run(self, asker: Asker) -> None:
        """A watching asker waits for its turn."""
        if asker.watching:
            await self._turns.turn(asker.organization_id)
        else:
            await asyncio.sleep(0)

    def cached_score(self, window: "Window", question: Question, asker: Asker) -> float | None:
        return self._cached.get(asker.organization_id, (question.key, window.digest))

    async def score(self, window: "Window", question: Question, asker: Asker) -> float:
        """Raises TollkeeperError if the judge is down or late, or its answer can't be read."""
        async with window.after_first_question():
            score = await self._ask_or_split(window, question, asker)
        self._cached.put(asker.organization_id, (question.key, window.digest), score)
        return score

    async def _ask_or_split(self, window: "Window", question: Question, asker: "Asker") -> float:
        if not window.is_too_long:
            try:
                async with self._slots.held(
                    watching=asker.watching, organization=asker.organization_id
                ):
                    return await self._ask(window, question.text, asker)
            except ProviderRejected:
                if window.is_smallest:
                    raise
                window.is_too_long = True
        return max([await self._score_of_half(half, question, asker) for half in window.halves])

    async def _score_of_half(self, half: "Window", question: Question, asker: Asker) -> float:
        cached = self.cached_score(half, question, asker)
        return await self.score(half, question, asker) if cached is None else cached

    async def _ask(self, window: "Window", question: str, asker: "Asker") -> float:
        charged = True
        report = NO_REPORT
        call = self._call(window, question, asker.organization_id)
        answer = EventCollector()
        try:
            await self._backend.answer(call, answer, deadline=asker.deadline)
        except TollkeeperError as exc:
            charged = exc.charged
            raise
        except BaseException:
            # Cancelled. If it had been sent already, the backend may charge.
            charged = answer.sent
            raise
        finally:
            for event in answer.events:
                if isinstance(event, UsageReport) and event.usage is not None:
                    report = merged(report, event.usage)
            if charged or report is not NO_REPORT:
                usage, cost = read_usage(call, report), report.cost_picousd or 0
                self._meter(asker.organization_id, self._model, usage, cost)
        deltas = (event for event in answer.events if isinstance(event, Delta))
        logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
        score = next((score for score in map(read_score, logprobs) if score is not None), None)
        if score is None:
            raise BackendFailed(_NO_PROBABILITY if logprobs else _NO_LOGPROBS)
        return score

    def _call(self, window: "Window", question: str, organization_id: OrganizationId) -> Call:
        return Call(
            request_id=str(_NO_ID),
            organization_id=organization_id,
            project_id=_NO_PROJECT,
            key_id=KeyId(_NO_ID),
            model=self._model,
            choices=1,
            output_tokens_max=1,
            output_limit_field="max_tokens",
            streamed=False,
            prompt=Prompt(
                turns=window.quotation.asking(question),
                sampling=Sampling(temperature=0),
                logprobs=Logprobs("logprobs", self.config.top_logprobs),
                caching=CachingWish(salt=self._salt(organization_id)),
            ),
            # Same affinity, same replica, whose cache has the prompts' common prefix. All questions
            # about a window share it, and so do all windows and segments of the answer to one
            # request.
            affinity=window.prefix_digest,
        )

    def _salt(self, organization_id: OrganizationId) -> str | None:
        """Keeps the organization apart in the judge's prefix cache. None if the backend takes no
        salt."""
        if not self._model.isolates_cache:
            return None
        return isolated_text(
            self._secret, organization_id, _NO_PROJECT, CachePurpose.CACHE_SALT, ""
        )


class Window:
    """A section of a text with its context, the end of the request that it answers. All questions
    about it share one window."""

    def __init__(
        self, text: str, secret: bytes, examples: tuple[Example, ...], context: str = ""
    ) -> None:
        self.text = text
        self._context = context
        self._secret = secret
        self._examples = examples
        self.digest = _digest(f"{len(context)}:{context}{text}", secret)
        self.prefix_digest = _digest(f"context:{context}", secret) if context else self.digest
        self.is_too_long = False
        self._first_question_ended: asyncio.Event | None = None

    @asynccontextmanager
    async def after_first_question(self) -> AsyncIterator[None]:
        """The others wait until the first one has ended, answered or not. Not for short texts."""
        if len(self._context) + len(self.text) < _WARM_UP_LENGTH_MIN:
            yield
        elif self._first_question_ended is not None:
            await self._first_question_ended.wait()
            yield
        else:
            self._first_question_ended = asyncio.Event()
            try:
                yield
            finally:
                self._first_question_ended.set()

    @cached_property
    def quotation(self) -> Quotation:
        # Text and context are quoted between fence lines. A fence is a hash of the quoted text and
        # a secret, so the author can't imitate it. The context's doesn't depend on the answer, so
        # prompts with the same context have a common prefix.
        return Quotation(
            self.text,
            self.digest.hex()[:_FENCE_LENGTH],
            self._examples,
            context=self._context,
            context_fence=self.prefix_digest.hex()[:_FENCE_LENGTH],
        )

    @property
    def is_smallest(self) -> bool:
        """Neither text nor context can be shortened."""
        return len(self.text) <= _HALVED_LENGTH_MIN and not self._context

    @cached_property
    def halves(self) -> list["Window"]:
        """With a shorter context. A text that's too short to split stays whole."""
        sections: Iterable[str] = (self.text,)
        if len(self.text) > _HALVED_LENGTH_MIN:
            overlap = len(self.text) // 10
            sections = windows(self.text, (len(self.text) + overlap + 1) // 2, overlap)
        half = len(self._context) // 2
        context = context_of(self._context, half if half > _HALVED_LENGTH_MIN else 0)
        return [Window(section, self._secret, self._examples, context) for section in sections]


def _digest(text: str, secret: bytes) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, key=secret, digest_size=32).digest()


class _QuestionRun:
    """Asks all questions about a text, at most `concurrency` at once. Window by window, because
    prompts for the same window have a common prefix that the backend can cache."""

    def __init__(
        self,
        judge: Judge,
        text: str,
        context: str,
        questions: Sequence[Question],
        asker: Asker,
    ) -> None:
        config = judge.config
        count = window_count(len(text), config.window_characters, config.overlap_characters)
        self._judge = judge
        self._questions = questions
        self._asker = asker
        self._started = asyncio.get_running_loop().time()
        self._windows_left = [count] * len(questions)
        # Not failed, and with windows left.
        self._open_questions = len(questions)
        self._workers_max = min(config.concurrency, count * len(questions))
        self._workers = asyncio.TaskGroup()
        self._workers_started = 0
        # All workers take pairs of window and question from this. One at a time looks for a pair
        # without a cached score.
        self._remaining = self._window_questions(text, context)
        self._looking = asyncio.Lock()
        self._looked_up = 0
        self.opinions = [Opinion() for _ in questions]

    async def run(self) -> None:
        if self._asker.watching:
            await self._judge.let_others_run(self._asker)
        async with self._workers:
            self._start_workers(1)

    def _start_workers(self, count_min: int = 0) -> None:
        started = self._workers_started
        wanted = started + max(count_min, self._judge.questions_at_once(self._asker))
        self._workers_started = min(wanted, self._workers_max)
        for _ in range(started, self._workers_started):
            self._workers.create_task(self._work(), name="judge worker")

    def give_up(self, reason: str) -> None:
        for opinion in self.opinions:
            if not opinion.complete:
                self._end_opinion(opinion, reason)

    def _window_questions(self, text: str, context: str) -> Iterator[tuple[Window, int]]:
        for window in self._judge.windows(text, context):
            if not self._open_questions:
                return
            for index, opinion in enumerate(self.opinions):
                if not opinion.reason:
                    yield window, index

    async def _work(self) -> None:
        while (unscored := await self._next_unscored()) is not None:
            window, index = unscored
            try:
                score = await self._judge.score(window, self._questions[index], self._asker)
            except TollkeeperError as exc:
                self._end_opinion(self.opinions[index], exc.reason)
            else:
                self._take_score(index, score)
                if self._workers_started < self._workers_max:
                    self._start_workers()

    async def _next_unscored(self) -> tuple[Window, int] | None:
        """Takes the cached scores on the way. None if there's nothing left to ask."""
        judge, asker = self._judge, self._asker
        async with self._looking:
            for window, index in self._remaining:
                self._looked_up += 1
                if self._looked_up % _SCORES_PER_STEP == 0:
                    await judge.let_others_run(asker)
                score = judge.cached_score(window, self._questions[index], asker)
                if score is None:
                    return window, index
                self._take_score(index, score)
        return None

    def _take_score(self, index: int, score: float) -> None:
        opinion = self.opinions[index]
        opinion.score = score if opinion.score is None else max(score, opinion.score)
        self._windows_left[index] -= 1
        if not self._windows_left[index]:
            opinion.complete = True
            self._end_opinion(opinion, "")

    def _end_opinion(self, opinion: Opinion, reason: str) -> None:
        if not opinion.reason:
            self._open_questions -= 1
            opinion.reason = reason
            opinion.seconds = asyncio.get_running_loop().time() - self._started
