"""The script of one call, read top to bottom: bound, reserve, dispatch, deliver, resolve.

It runs in a task of its own. The caller's leaving and the server's draining reach it as wishes; it
always comes to the end, where the reservation is resolved.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tollkeeper.backends.port import Backend
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Batch, Call, Usage
from tollkeeper.domain.metering import Meter
from tollkeeper.services.admission import Admission, Reservation, Settlement

T = TypeVar("T")

_TOKENIZER_TIMEOUT_S = 5.0
# A backend keeps the deadline itself and knows whether anything was charged by then; only where it
# does not, or where the caller reads too slowly, the call is ended from outside.
_DEADLINE_SLACK_S = 0.5
# How long an answer waits for the books at least, however late it is.
_BOOKS_S_MIN = 5.0


class Sink(Protocol):
    """Where an answer goes. The first `take` means that the answer has begun."""

    async def take(self, batch: Batch) -> None: ...


@dataclass(frozen=True, slots=True)
class InferenceLimits:
    deadline_s: float
    # A caller has left: how long, and for how many such calls at once, the rest is still read.
    drain_s: float
    drains_max: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call that came to its proper end, and is settled."""

    usage: Usage
    settlement: Settlement
    meter: Meter
    replica: str


class BooksAreLate(Unavailable):
    """The cost of the call could not be written down in time; it is written as soon as it can."""


class LiveCall:
    """A call under way, as seen by those who may want it to end sooner."""

    def __init__(self) -> None:
        self.abandoned = False
        self.stopped = False
        self._timeout: asyncio.Timeout | None = None
        self._slack_s = 0.0
        self._ends_at: float | None = None

    def bind(self, timeout: asyncio.Timeout, *, slack_s: float = 0.0) -> None:
        """From now on this is what a wish to end sooner moves, and by how much it may be late."""
        self._timeout = timeout
        self._slack_s = slack_s
        if self._ends_at is not None:
            self._move(timeout, self._ends_at)

    def release(self) -> None:
        self._timeout = None

    def end_by(self, when: float) -> None:
        self._ends_at = when
        if self._timeout is not None and not self._timeout.expired():
            self._move(self._timeout, when)

    def _move(self, timeout: asyncio.Timeout, when: float) -> None:
        when += self._slack_s
        timeout.reschedule(min(when, timeout.when() or when))


class Inference:
    def __init__(
        self, admission: Admission, backends: Mapping[str, Backend], limits: InferenceLimits
    ) -> None:
        self._admission = admission
        self._backends = backends
        self._limits = limits
        self._live: dict[asyncio.Task[Outcome], LiveCall] = {}

    async def infer(
        self,
        call: Call,
        prompt_estimate: int,
        sink: Sink,
        on_leave: Callable[[Callable[[], None]], None],
    ) -> Outcome:
        """Runs the call to its end. Raises domain errors; what the sink has taken by then stays
        taken. Cancelling the waiting does not cancel the call."""
        live = LiveCall()
        task = asyncio.create_task(self._run(call, prompt_estimate, sink, live))
        self._live[task] = live
        task.add_done_callback(self._forget)
        on_leave(lambda: self._abandon(live))
        return await asyncio.shield(task)

    async def drain(self, grace_s: float) -> None:
        """Lets running calls end within the grace, then stops and settles them."""
        if self._live:
            await asyncio.wait(list(self._live), timeout=grace_s)
        now = asyncio.get_running_loop().time()
        for live in self._live.values():
            live.stopped = True
            live.end_by(now)
        if self._live:
            await asyncio.wait(list(self._live))

    @property
    def running(self) -> int:
        return len(self._live)

    def _forget(self, task: asyncio.Task[Outcome]) -> None:
        del self._live[task]
        if not task.cancelled():
            task.exception()  # seen: whoever waited has it, or has left

    def _abandon(self, live: LiveCall) -> None:
        live.abandoned = True
        drains = sum(other.abandoned for other in self._live.values())
        within_s = self._limits.drain_s if drains <= self._limits.drains_max else 0.0
        live.end_by(asyncio.get_running_loop().time() + within_s)

    async def _run(self, call: Call, prompt_estimate: int, sink: Sink, live: LiveCall) -> Outcome:
        deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
        backend = self._backends[call.model.backend]
        prompt_tokens = await self._prompt_tokens(backend, call, prompt_estimate)
        reservation = await self._admission.reserve(call, prompt_tokens)
        meter = Meter(call, prompt_tokens)
        try:
            replica = await _deliver(backend, call, deadline, meter, sink, live)
        except TollkeeperError as exc:
            with contextlib.suppress(BooksAreLate):
                await _booked(self._resolve_failure(reservation, meter, live, exc), deadline, live)
            raise
        except BaseException:
            # A fault of ours after dispatch: nobody knows what the backend has done.
            unsettled = self._admission.leave_unsettled(
                reservation, "the gateway failed during the call"
            )
            with contextlib.suppress(BooksAreLate):
                await _booked(unsettled, deadline, live)
            raise
        usage = meter.usage or meter.estimate()
        settling = self._admission.settle(reservation, usage, estimated=meter.usage is None)
        return Outcome(usage, await _booked(settling, deadline, live), meter, replica)

    async def _prompt_tokens(self, backend: Backend, call: Call, estimate: int) -> int:
        """Exact where the backend can count, else the estimate; no prompt exceeds the context."""
        deadline = asyncio.get_running_loop().time() + _TOKENIZER_TIMEOUT_S
        counted = await backend.count_prompt_tokens(call, deadline=deadline)
        return min(estimate if counted is None else counted, call.model.context_length)

    async def _resolve_failure(
        self, reservation: Reservation, meter: Meter, live: LiveCall, error: TollkeeperError
    ) -> None:
        if meter.delivered or meter.usage is not None or (live.abandoned and error.charged):
            # Something was delivered, or its reader left while the backend worked: it is paid.
            error.charged = True
            usage = meter.usage or meter.estimate()
            await self._admission.settle(reservation, usage, estimated=meter.usage is None)
        elif error.charged:
            await self._admission.leave_unsettled(reservation, error.message)
        else:
            await self._admission.release(reservation)


async def _deliver(
    backend: Backend, call: Call, deadline: float, meter: Meter, sink: Sink, live: LiveCall
) -> str:
    """Reads the answer to its proper end, and says which replica gave it."""
    if live.abandoned or live.stopped:
        # Nothing has left yet: nobody wants the answer any more, so nobody pays for it.
        raise Unavailable("The call ended before it was dispatched.", retry_after_s=1)
    opened = False
    try:
        async with asyncio.timeout_at(deadline + _DEADLINE_SLACK_S) as timeout:
            live.bind(timeout)
            async with backend.open(call, deadline=deadline) as answer:
                opened = True
                async for batch in answer.batches:
                    meter.count(batch)
                    await sink.take(batch)
                return answer.replica
    except TimeoutError:
        raise _ended_early(live, opened) from None
    finally:
        live.release()


def _ended_early(live: LiveCall, opened: bool) -> TollkeeperError:
    if live.stopped:
        return Unavailable("The gateway is shutting down.", retry_after_s=1, charged=not opened)
    if live.abandoned:
        return BackendFailed("The caller left.", charged=True)
    return DeadlineExceeded(charged=True)


async def _booked(writing: Awaitable[T], deadline: float, live: LiveCall) -> T:
    """Waits for the books until the deadline, and no longer: what is being written is written all
    the same, however long the database is away."""
    soonest = asyncio.get_running_loop().time() + _BOOKS_S_MIN
    try:
        async with asyncio.timeout_at(max(deadline, soonest)) as timeout:
            live.bind(timeout, slack_s=_BOOKS_S_MIN)
            return await writing
    except TimeoutError:
        raise BooksAreLate(retry_after_s=None, charged=True) from None
    finally:
        live.release()
