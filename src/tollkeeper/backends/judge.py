"""Asks a model one yes-or-no question about a text: one output token, its log-probabilities."""

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import BackendFailed, DeadlineExceeded, TollkeeperError, Unavailable
from tollkeeper.domain.inference import Call, Delta
from tollkeeper.domain.judging import judge_messages, read_probability, windows

_NOBODY = UUID(int=0)
_VERDICTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    deadline_s: float
    concurrency: int
    window_characters: int
    overlap_characters: int
    # How many alternatives to ask for; the words must be among them.
    top_logprobs: int


@dataclass(frozen=True, slots=True)
class Question:
    """`key` names the question for ever: a published version's id."""

    key: str
    text: str


class Judge:
    """The probability of "yes", in basis points. Verdicts on the same text are remembered."""

    def __init__(self, backend: Backend, model: Model, secret: bytes, config: JudgeConfig) -> None:
        self._backend = backend
        self._model = model
        self._secret = secret
        self._config = config
        self._asking = asyncio.Semaphore(config.concurrency)
        self._verdicts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    async def probability(self, text: str, question: Question) -> int:
        """The highest over the text's windows. Raises where the judge is down, late or unreadable:
        there is no probability then, and none is made up."""
        key = (question.key, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        remembered = self._verdicts.get(key)
        if remembered is not None:
            self._verdicts.move_to_end(key)
            return remembered
        deadline = asyncio.get_running_loop().time() + self._config.deadline_s
        pieces = windows(text, self._config.window_characters, self._config.overlap_characters)
        try:
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as asking:
                answers = [
                    asking.create_task(self._ask(piece, question.text, deadline))
                    for piece in pieces
                ]
        except TimeoutError:
            raise DeadlineExceeded("The judge did not answer in time.") from None
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        highest = max(answer.result() for answer in answers)
        self._remember(key, highest)
        return highest

    async def _ask(self, text: str, question: str, deadline: float) -> int:
        async with self._asking:
            call = self._call(text, question)
            async with self._backend.open(call, deadline=deadline) as answer:
                async for batch in answer.batches:
                    for event in batch:
                        if isinstance(event, Delta) and event.logprobs is not None:
                            found = read_probability(event.logprobs)
                            if found is not None:
                                return found
        raise BackendFailed("The judge's answer has no probability of yes and no.")

    def _call(self, text: str, question: str) -> Call:
        # The fence depends on the text and on a secret: the text cannot contain it.
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._secret)
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
            fields={
                "messages": judge_messages(text, question, digest.hexdigest()[:16]),
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": self._config.top_logprobs,
            },
            # All questions about one text go where its prefix is cached.
            affinity=digest.digest()[:32],
        )

    def _remember(self, key: tuple[str, bytes], probability: int) -> None:
        self._verdicts[key] = probability
        if len(self._verdicts) > _VERDICTS_MAX:
            self._verdicts.popitem(last=False)


def _first_cause(group: BaseExceptionGroup) -> BaseException:
    for exc in group.exceptions:
        if isinstance(exc, TollkeeperError):
            return exc
    return Unavailable("The judge failed.")
