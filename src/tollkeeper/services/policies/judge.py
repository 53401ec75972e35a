"""Asks a model yes-or-no questions about a text: one output token each, its log-probabilities.

Knows nothing of policies: a question has a key and a text, and an answer is a probability or the
reason why there is none.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import BackendFailed, ProviderRejected, TollkeeperError
from tollkeeper.domain.inference import Call, Delta
from tollkeeper.domain.judging import (
    EXAMPLES,
    Example,
    Quotation,
    read_probability,
    window_count,
    windows,
)
from tollkeeper.domain.prompt import Logprobs, Prompt, Sampling
from tollkeeper.services.policies.judge_slots import JudgeSlots
from tollkeeper.timeouts import timeout_at

_NOBODY = UUID(int=0)
_VERDICTS_MAX = 20_000
# A window that the judge refuses may be too long for its context: it is halved down to this.
_HALVED_LENGTH_MIN = 400
_FENCE_LENGTH = 16
_YIELD_EVERY = 64
# From here on reading a text costs a backend more than a round trip: one question goes ahead, and
# the others find its beginning read.
_LED_LENGTH_MIN = 1000
_LATE = "The judge did not answer in time."
_UNREADABLE = "The judge's answer has no probability of yes and no."
_WITHOUT_LOGPROBS = (
    "The judge's answer has no log-probabilities: its backend must give them (logprobs, "
    "top_logprobs), or it cannot judge."
)


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    # For all questions about one text together.
    deadline_s: float
    # Questions at once in this process.
    concurrency: int
    window_characters: int
    overlap_characters: int
    # How many alternatives to ask for; the words must be among them.
    top_logprobs: int
    examples: tuple[Example, ...] = EXAMPLES


@dataclass(frozen=True, slots=True)
class Question:
    """`key` names the question for ever: a published version's id."""

    key: str
    text: str


@dataclass(slots=True)
class Opinion:
    """What the judge found on one question, in basis points."""

    # Over the windows that it has read.
    highest: int | None = None
    # It has read them all: nothing higher can come.
    complete: bool = False
    # Why it is not complete.
    reason: str = ""
    seconds: float = 0.0


class Judge:
    """The probability of "yes". Verdicts on the same window of text are remembered."""

    def __init__(self, backend: Backend, model: Model, secret: bytes, config: JudgeConfig) -> None:
        self._backend = backend
        self._model = model
        self._secret = secret
        self.config = config
        self._slots = JudgeSlots(config.concurrency)
        self._verdicts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    async def ask_all(
        self, text: str, questions: Sequence[Question], *, watching: bool = False
    ) -> list[Opinion]:
        """One opinion a question, in order; whatever the judge does, within the deadline. None is
        made up: where the judge is down, late or unreadable, the opinion says so. Who is only
        `watching` lets those pass who make a caller wait."""
        deadline = asyncio.get_running_loop().time() + self.config.deadline_s
        questioning = _Questioning(self, text, questions, deadline, watching)
        try:
            with timeout_at(deadline):
                await questioning.run()
        except TimeoutError:
            questioning.give_up(_LATE)
        return questioning.opinions

    def windows(self, text: str) -> Iterator["Window"]:
        config = self.config
        for piece in windows(text, config.window_characters, config.overlap_characters):
            yield Window(piece, self._secret, config.examples)

    async def probability(
        self, window: "Window", question: Question, *, deadline: float, watching: bool
    ) -> int:
        """Raises where the judge is down, late or unreadable."""
        key = (question.key, window.digest)
        remembered = self._verdicts.get(key)
        if remembered is not None:
            self._verdicts.move_to_end(key)
            return remembered
        async with window.after_first():
            found = await self._ask_in_pieces(window, question, deadline, watching)
        self._verdicts[key] = found
        if len(self._verdicts) > _VERDICTS_MAX:
            self._verdicts.popitem(last=False)
        return found

    async def _ask_in_pieces(
        self, window: "Window", question: Question, deadline: float, watching: bool
    ) -> int:
        if not window.is_too_long:
            try:
                async with self._slots.held(watching=watching):
                    return await self._ask(window, question.text, deadline)
            except ProviderRejected:
                if len(window.text) <= _HALVED_LENGTH_MIN:
                    raise
                window.is_too_long = True
        return max(
            [
                await self.probability(half, question, deadline=deadline, watching=watching)
                for half in window.halves
            ]
        )

    async def _ask(self, window: "Window", question: str, deadline: float) -> int:
        found, given = None, False
        async with self._backend.open(self._call(window, question), deadline=deadline) as answer:
            # To its end, short as it is: then the connection can be used again.
            async for batch in answer.batches:
                for event in batch:
                    if isinstance(event, Delta) and event.logprobs is not None and found is None:
                        given = True
                        found = read_probability(event.logprobs)
        if found is None:
            raise BackendFailed(_UNREADABLE if given else _WITHOUT_LOGPROBS)
        return found

    def _call(self, window: "Window", question: str) -> Call:
        return Call(
            request_id=str(_NOBODY),
            organization_id=OrganizationId(_NOBODY),
            project_id=ProjectId(_NOBODY),
            key_id=KeyId(_NOBODY),
            model=self._model,
            choices=1,
            output_tokens_max=1,
            output_bound_field="max_tokens",
            streamed=False,
            prompt=Prompt(
                turns=window.quotation.asking(question),
                sampling=Sampling(temperature=0),
                logprobs=Logprobs("logprobs", self.config.top_logprobs),
            ),
            # All questions about one window go where its beginning is cached.
            affinity=window.digest,
        )


class Window:
    """A piece of text as all questions about it share it."""

    def __init__(self, text: str, secret: bytes, examples: tuple[Example, ...]) -> None:
        self.text = text
        self._secret = secret
        self._examples = examples
        encoded = text.encode("utf-8", "surrogatepass")
        self.digest = hashlib.blake2b(encoded, key=secret, digest_size=32).digest()
        self.is_too_long = False
        self._led: asyncio.Event | None = None

    @asynccontextmanager
    async def after_first(self) -> AsyncIterator[None]:
        """Lets the first question through, and the others once it is answered, or is not."""
        if len(self.text) < _LED_LENGTH_MIN:
            yield
        elif self._led is not None:
            await self._led.wait()
            yield
        else:
            self._led = asyncio.Event()
            try:
                yield
            finally:
                self._led.set()

    @cached_property
    def quotation(self) -> Quotation:
        # The fence depends on the text and on a secret: the text cannot contain it.
        return Quotation(self.text, self.digest.hex()[:_FENCE_LENGTH], self._examples)

    @cached_property
    def halves(self) -> list["Window"]:
        overlap = len(self.text) // 10
        length = (len(self.text) + overlap + 1) // 2
        pieces = windows(self.text, length, overlap)
        return [Window(piece, self._secret, self._examples) for piece in pieces]


class _Questioning:
    """All questions about one text. Window by window, so that one beginning serves them all, and
    never more of them under way than the judge takes at once."""

    def __init__(
        self,
        judge: Judge,
        text: str,
        questions: Sequence[Question],
        deadline: float,
        watching: bool,
    ) -> None:
        config = judge.config
        count = window_count(len(text), config.window_characters, config.overlap_characters)
        self._judge = judge
        self._questions = questions
        self._deadline = deadline
        self._watching = watching
        self._started = asyncio.get_running_loop().time()
        self._windows_left = [count] * len(questions)
        # Questions that have neither failed nor been answered for good.
        self._open = len(questions)
        self._workers = min(config.concurrency, count * len(questions))
        # Shared by the workers: each takes what comes next.
        self._due = self._in_order(text)
        self._taken = 0
        self.opinions = [Opinion() for _ in questions]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._work(), name="judge worker")

    def give_up(self, reason: str) -> None:
        for opinion in self.opinions:
            if not opinion.complete:
                self._end(opinion, reason)

    def _in_order(self, text: str) -> Iterator[tuple[Window, int]]:
        for window in self._judge.windows(text):
            if not self._open:
                return
            for place, opinion in enumerate(self.opinions):
                if not opinion.reason:
                    yield window, place

    async def _work(self) -> None:
        for window, place in self._due:
            # What is remembered is answered without waiting, which must not become a busy loop.
            self._taken += 1
            if self._taken % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            opinion = self.opinions[place]
            try:
                found = await self._judge.probability(
                    window,
                    self._questions[place],
                    deadline=self._deadline,
                    watching=self._watching,
                )
            except TollkeeperError as exc:
                self._end(opinion, exc.message)
                continue
            opinion.highest = max(found, opinion.highest or 0)
            self._windows_left[place] -= 1
            if not self._windows_left[place]:
                opinion.complete = True
                self._end(opinion, "")

    def _end(self, opinion: Opinion, reason: str) -> None:
        if not opinion.reason:
            self._open -= 1
            opinion.reason = reason
            opinion.seconds = asyncio.get_running_loop().time() - self._started
