"""Splits a call for `n` completions into parts of one, if the backend doesn't support `n`. They run
in parallel, up to a limit, each with its own meter, so each can be charged. If one fails, the call
fails with the first error, and no further part is sent. Sent parts are read to the end, because the
backend charges for them and reports exact usage only there."""

import asyncio
from collections import deque

from msgspec.structs import replace

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.inference import Batch, Call, Delta, Event, Opened
from tollkeeper.core.metering import Meter
from tollkeeper.core.port import Answering, AnswerReceiver, Backend, BackendHealth, EventCollector
from tollkeeper.core.runtime.large_requests import LARGE_CALL_REQUESTS_MAX

# With so many batches, the parts stop reading from the backend.
_WAITING_BATCHES_MAX = 64
# What backends accept: 32 or 64 bits, signed or unsigned.
_SEED_LIMITS = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


class FanOutBackend:
    def __init__(self, backend: Backend, *, concurrency: int) -> None:
        self.name = backend.name
        self._backend = backend
        self._concurrency = concurrency

    def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> Answering:
        if call.choices == 1:
            return self._backend.answer(call, receiver, deadline=deadline)
        return _FanOutCall(self._backend, call, receiver, deadline).run(self._concurrency)

    @property
    def counts_tokens(self) -> bool:
        return self._backend.counts_tokens

    @property
    def counts_media(self) -> bool:
        return self._backend.counts_media

    def prompts_sent(self, call: Call) -> int:
        return call.choices

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        return await self._backend.count_prompt_tokens(call, deadline=deadline)

    def health(self) -> BackendHealth:
        return self._backend.health()

    async def start(self) -> None:
        await self._backend.start()

    async def close(self) -> None:
        await self._backend.close()


class _FanOutCall:
    def __init__(
        self, backend: Backend, call: Call, receiver: AnswerReceiver, deadline: float
    ) -> None:
        self._backend = backend
        self._call = call
        self.receiver = receiver
        self._deadline = deadline
        self._tasks: list[asyncio.Task[None]] = []
        self._tasks_ended = 0
        self.parts: list[_Part] = []
        # Not yet received.
        self._waiting: deque[list[Event]] = deque()
        # A new batch, or a part's end. `run` waits for this.
        self._changed = asyncio.Event()
        # A batch has left `_waiting`. The parts wait for this if there are too many.
        self._room = asyncio.Event()
        self._opened = False
        # The first.
        self._failure: TollkeeperError | None = None

    async def run(self, concurrency: int) -> None:
        call, receiver = self._call, self.receiver
        tasks_max = min(concurrency, call.choices)
        if call.is_large:
            tasks_max = min(tasks_max, LARGE_CALL_REQUESTS_MAX)
        for _ in range(tasks_max):
            task = asyncio.create_task(self._run_parts(), name="fan-out task")
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        try:
            while batch := await self._next_batch():
                await receiver.take(batch)
            sent = sum(part.sent for part in self.parts)
            if self._failure is not None:
                self._failure.charged = sent > 0
                # The backend may bill other parts.
                self._failure.tokens_are_free = all(
                    part.meter.is_free for part in self.parts if part.sent
                )
                raise self._failure
            if sent < call.choices:
                raise BackendFailed(
                    "The call ended before it was sent for every choice.", charged=sent > 0
                )
        finally:
            try:
                await self._stop()
            finally:
                if receiver.replica is not None:
                    receiver.set_parts([part.meter for part in self.parts if part.sent])
                # Breaks a reference cycle, so the prompt is freed at once.
                self.parts.clear()

    async def _next_batch(self) -> list[Event]:
        """Empty if all parts have ended and no more begins."""
        while not self._waiting:
            if self._tasks_ended == len(self._tasks):
                for task in self._tasks:
                    if not task.cancelled():
                        task.result()  # Raises if the gateway itself has failed.
                return []
            self._changed.clear()
            await self._changed.wait()
        self._room.set()
        return self._waiting.popleft()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _run_parts(self) -> None:
        """One after another, until all have begun, one has failed, or the call has to end."""
        task, receiver = asyncio.current_task(), self.receiver
        assert task is not None
        while (
            self._failure is None
            and receiver.ends_by is None
            and len(self.parts) < self._call.choices
        ):
            part = _Part(self, _part_call(self._call, len(self.parts)), len(self.parts), task)
            self.parts.append(part)
            try:
                await self._backend.answer(part.call, part, deadline=self._deadline)
            except TollkeeperError as error:
                part.sent = error.charged
                part.meter.broke_off = not error.backend_ended_answer
                part.meter.is_free = error.tokens_are_free and not part.meter.reports_fees
                if part.ends_by is None or part.sent:
                    self._fail(error)
                return
            part.meter.broke_off = False

    def _fail(self, error: TollkeeperError) -> None:
        """Parts that wait for a connection aren't sent any more."""
        if self._failure is None:
            self._failure = error
            for part in self.parts:
                if not part.sent and part.task is not asyncio.current_task():
                    part.task.cancel()

    async def take(self, part: "_Part", batch: Batch) -> None:
        self.receiver.replica = self.receiver.replica or part.replica
        events = self._events_of_part(part, batch)
        if not events:
            return
        while len(self._waiting) >= _WAITING_BATCHES_MAX:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(events)
        self._changed.set()

    def _events_of_part(self, part: "_Part", batch: Batch) -> list[Event]:
        part.meter.count(batch)
        events: list[Event] = []
        for event in batch:
            if isinstance(event, Delta):
                events.append(replace(event, choice=part.number) if part.number else event)
            elif isinstance(event, Opened) and not self._opened:
                self._opened = True
                events.append(event)
        return events

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks_ended += 1
        self._changed.set()


class _Part(EventCollector):
    def __init__(
        self, fan_out: _FanOutCall, call: Call, number: int, task: asyncio.Task[None]
    ) -> None:
        super().__init__()
        self._fan_out = fan_out
        self.call = call
        self.number = number
        self.task = task
        # `Meter.set_parts` sets the prompt's tokens in the end.
        self.meter = Meter(call, prompt_tokens=0, broke_off=True)
        self._sent = False

    @property
    def ends_by(self) -> float | None:
        return self._fan_out.receiver.ends_by

    @property
    def sent(self) -> bool:
        """And not refused, so the backend may charge for it."""
        return self._sent

    @sent.setter
    def sent(self, sent: bool) -> None:
        self._sent = sent
        self._fan_out.receiver.sent = any(part.sent for part in self._fan_out.parts)

    async def take(self, batch: Batch) -> None:
        await self._fan_out.take(self, batch)


def _part_call(call: Call, part: int) -> Call:
    """Each part has another seed, because the same one would give the same text. It stays within
    the limit that the client's seed keeps: 2147483647 counts down, because Gemini would refuse
    2147483648 after other parts were sent and charged."""
    seed = call.prompt.sampling.seed
    if part == 0 or seed is None:
        return replace(call, choices=1)
    exceeds = any(seed <= limit < seed + part for limit in _SEED_LIMITS)
    part_seed = seed - part if exceeds else seed + part
    return replace(call, choices=1, prompt=call.prompt.with_seed(part_seed))
