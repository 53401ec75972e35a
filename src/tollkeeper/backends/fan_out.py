"""Splits a call for `n` completions into n calls for one completion, if the backend does not support
`n`.

Each of these n calls is a part. Parts run in parallel, up to a limit. Their events are passed on as
they arrive. Each part has its own meter, so that the call can be charged part by part.

If one part fails, the whole call fails, and no further part is sent. The parts that were already sent
are read to their end, because the backend charges for them, and reports their exact usage only there.
The call then fails with the error of the part that failed first.
"""

import asyncio
from collections import deque

from msgspec.structs import replace

from tollkeeper.backends.port import (
    Answering,
    AnswerReceiver,
    Backend,
    BackendHealth,
    EventCollector,
)
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Batch, Call, Delta, Event, Opened
from tollkeeper.domain.metering import Meter
from tollkeeper.runtime.large_requests import LARGE_CALL_REQUESTS_MAX

# The maximum number of batches of events that wait for the reader. While this many batches wait,
# the parts do not read from the backend.
_WAITING_BATCHES_MAX = 64
# The largest seeds that backends accept: signed and unsigned integers of 32 or 64 bits.
_SEED_LIMITS = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


class FanOutBackend:
    """Adds support for `n` to a backend that does not have it."""

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
    """Runs one call as several parts."""

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
        # The batches that the receiver has not received yet.
        self._waiting: deque[list[Event]] = deque()
        # Set when there is a new batch, or when a part ends. `run` waits for this event.
        self._changed = asyncio.Event()
        # Set when a batch leaves `_waiting`. If too many batches wait, the parts wait for this event.
        self._room = asyncio.Event()
        self._opened = False
        # The error of the part that failed first.
        self._failure: TollkeeperError | None = None

    async def run(self, concurrency: int) -> None:
        """Runs the parts, and passes their events to the receiver."""
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
                # The backend may bill other parts than this one.
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
                # The parts refer to this object. Without this reference cycle, the prompt is freed at
                # once.
                self.parts.clear()

    async def _next_batch(self) -> list[Event]:
        """Returns the next events of any part. Returns an empty list if all parts have ended and no
        further part begins."""
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
        """Runs one part after another, until all parts have begun, any part has failed, or the call has
        to end."""
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
        """Records the failure of a part. Parts that wait for a connection are not sent any more."""
        if self._failure is None:
            self._failure = error
            for part in self.parts:
                if not part.sent and part.task is not asyncio.current_task():
                    part.task.cancel()

    async def take(self, part: "_Part", batch: Batch) -> None:
        """Receives events of a part."""
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
    """Receives the answer to one part."""

    def __init__(
        self, fan_out: _FanOutCall, call: Call, number: int, task: asyncio.Task[None]
    ) -> None:
        super().__init__()
        self._fan_out = fan_out
        self.call = call
        self.number = number
        self.task = task
        # The prompt's tokens are set in the end, by `Meter.set_parts`.
        self.meter = Meter(call, prompt_tokens=0, broke_off=True)
        self._sent = False

    @property
    def ends_by(self) -> float | None:
        return self._fan_out.receiver.ends_by

    @property
    def sent(self) -> bool:
        """Tells whether the part was sent and not refused, so that the backend may charge for it."""
        return self._sent

    @sent.setter
    def sent(self, sent: bool) -> None:
        self._sent = sent
        self._fan_out.receiver.sent = any(part.sent for part in self._fan_out.parts)

    async def take(self, batch: Batch) -> None:
        await self._fan_out.take(self, batch)


def _part_call(call: Call, part: int) -> Call:
    """Returns the call for one completion. Each part has a different seed, because the same seed
    would give the same text in every part. The seed of a part never exceeds a limit that the client's
    seed keeps: 2147483647 counts down, because Gemini would refuse 2147483648 after other parts
    were sent and charged."""
    seed = call.prompt.sampling.seed
    if part == 0 or seed is None:
        return replace(call, choices=1)
    exceeds = any(seed <= limit < seed + part for limit in _SEED_LIMITS)
    part_seed = seed - part if exceeds else seed + part
    return replace(call, choices=1, prompt=call.prompt.with_seed(part_seed))
