"""Splits a call for `n` completions into n calls for one completion, if the backend does not support
`n`.

Each of these n calls is a part. Parts run in parallel, up to a limit. Their events are passed on as
they arrive. The usage of all parts is reported once, at the end. If one part fails, the whole call
fails.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from tollkeeper.backends.port import (
    Answering,
    AnswerReceiver,
    Backend,
    BackendHealth,
    EventCollector,
)
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Batch, Call, Delta, Event, Opened, UsageReport
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.usage import ReportedUsage
from tollkeeper.runtime.large_requests import LARGE_CALL_REQUESTS_MAX

# The maximum number of batches of events that wait for the reader. While this many batches wait,
# the parts do not read from the backend.
_WAITING_BATCHES_MAX = 64
# If a part is refused before any output, the other parts have this long to be refused too, before
# they are stopped. Without the wait, the other parts would be stopped while they are in flight, and
# the whole call would count as possibly charged.
_FAILURE_WAIT_S = 0.25
# The largest seed of a part: the largest signed integer of 64 bits.
_SEED_MAX = 2**63 - 1


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
        part_call = replace(call, choices=1)
        self._meters = [Meter(part_call, prompt_tokens=0) for _ in range(call.choices)]
        self._opened = False
        # Whether any part has produced output. If so, the call may have been charged.
        self._produced = False
        self._failure: BaseException | None = None

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
            sent = [self._meters[part.number] for part in self.parts if part.sent]
            if sent:
                await receiver.take([merged_report(sent)])
            if len(sent) < call.choices:
                raise BackendFailed(
                    "The call ended before it was sent for every choice.", charged=bool(sent)
                )
        finally:
            try:
                await self._stop()
            finally:
                if receiver.replica is not None:
                    # The backend has begun to answer, so at least one prompt is charged.
                    prompts = max(1, sum(part.sent for part in self.parts))
                    receiver.set_prompts_sent(prompts, prompts)
                # The parts refer to this object. Without this reference cycle, the prompt is freed at
                # once.
                self.parts.clear()

    async def _next_batch(self) -> list[Event]:
        """Returns the next events of any part. Returns an empty list if all parts have ended and no
        further part begins. Raises the failure of a part."""
        while not self._waiting:
            if self._failure is not None:
                await self._fail(self._failure)
            if self._tasks_ended == len(self._tasks):
                return []
            self._changed.clear()
            await self._changed.wait()
        self._room.set()
        return self._waiting.popleft()

    async def _fail(self, failure: BaseException) -> None:
        """Raises the failure of one part as the failure of the whole call. Sets the attribute
        `charged` of the failure to True if any part may have been charged."""
        if not isinstance(failure, TollkeeperError):
            raise failure
        if not self._produced and not failure.charged:
            await asyncio.wait(self._tasks, timeout=_FAILURE_WAIT_S)
        failure.charged = any(part.sent for part in self.parts)
        # The backend bills the other parts.
        failure.tokens_are_free = False
        raise failure

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _run_parts(self) -> None:
        """Runs one part after another, until all parts have begun, any part has failed, or the call has
        to end. The parts that were already sent are then read to their end, because the backend charges
        for them."""
        task, receiver = asyncio.current_task(), self.receiver
        assert task is not None
        while (
            self._failure is None
            and receiver.ends_by is None
            and len(self.parts) < self._call.choices
        ):
            part = _Part(self, len(self.parts), task)
            self.parts.append(part)
            call = _part_call(self._call, part.number)
            try:
                await self._backend.answer(call, part, deadline=self._deadline)
            except TollkeeperError as error:
                part.sent = error.charged
                if part.ends_by is not None and not part.sent:
                    return
                # The whole call fails, so parts that wait for a connection are not sent any more.
                for other in self.parts:
                    if not other.sent and other is not part:
                        other.task.cancel()
                raise

    async def take(self, part: "_Part", batch: Batch) -> None:
        """Receives events of a part."""
        self.receiver.replica = self.receiver.replica or part.replica
        events = self._events_of_part(part.number, batch)
        if not events:
            return
        while len(self._waiting) >= _WAITING_BATCHES_MAX:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(events)
        self._changed.set()

    def _events_of_part(self, part: int, batch: Batch) -> list[Event]:
        self._meters[part].count(batch)
        events: list[Event] = []
        for event in batch:
            if isinstance(event, Delta):
                self._produced = True
                events.append(replace(event, choice=part) if part else event)
            elif isinstance(event, Opened) and not self._opened:
                self._opened = True
                events.append(event)
        return events

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks_ended += 1
        self._failure = self._failure or (None if task.cancelled() else task.exception())
        self._changed.set()


class _Part(EventCollector):
    """Receives the answer to one part."""

    def __init__(self, call: _FanOutCall, number: int, task: asyncio.Task[None]) -> None:
        super().__init__()
        self._call = call
        self.number = number
        self.task = task
        self._sent = False

    @property
    def ends_by(self) -> float | None:
        return self._call.receiver.ends_by

    @property
    def sent(self) -> bool:
        """Tells whether the part was sent and not refused, so that the backend may charge for it."""
        return self._sent

    @sent.setter
    def sent(self, sent: bool) -> None:
        self._sent = sent
        self._call.receiver.sent = any(part.sent for part in self._call.parts)

    async def take(self, batch: Batch) -> None:
        await self._call.take(self, batch)


def merged_report(meters: Sequence[Meter]) -> UsageReport:
    """Returns a report with the usage of all parts. The prompt counts once for each part, because each
    part sent the prompt to the backend. The report is empty if any part did not report its usage."""
    for meter in meters:
        if meter.reported_impossible_usage:
            return UsageReport(None, meter.reported or {})
    if any(meter.usage is None for meter in meters):
        return UsageReport(ReportedUsage())
    costs = [meter.report.cost_picousd for meter in meters]
    stated_costs = [cost for cost in costs if cost is not None]
    usage = ReportedUsage(
        parts=tuple(meter.charge() for meter in meters),
        cost_picousd=sum(stated_costs) if len(stated_costs) == len(costs) else None,
        written={"parts": [meter.report.written for meter in meters]},
    )
    return UsageReport(usage)


def _part_call(call: Call, part: int) -> Call:
    """Returns the call for one completion. Each part has a different seed, because the same seed
    would give the same text in every part."""
    seed = call.prompt.sampling.seed
    if part == 0 or seed is None:
        return replace(call, choices=1)
    part_seed = seed + part if seed <= _SEED_MAX - part else seed - part
    return replace(call, choices=1, prompt=call.prompt.with_seed(part_seed))
