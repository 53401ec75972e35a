"""The script of one call, read top to bottom: bound, reserve, ask, dispatch, deliver, resolve.

It runs in a task of its own. The caller's leaving and the server's draining reach it as wishes; it
always comes to the end, where the reservation is resolved and the story is written down.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from tollkeeper.backends.port import Backend
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.policy import Direction
from tollkeeper.domain.policy_set import EMPTY, ActivePolicy
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt
from tollkeeper.domain.transcript import transcript
from tollkeeper.domain.usage import Usage
from tollkeeper.services.calls.chronicle import Chronicle
from tollkeeper.services.calls.response_gate import ResponseGate, Taking
from tollkeeper.services.calls.story import CallStory
from tollkeeper.services.calls.token_counting import TOKENIZER_TIMEOUT_S
from tollkeeper.services.ledger.admission import Admission, Reservation, Settlement
from tollkeeper.services.policies.checks import PolicyChecks
from tollkeeper.services.timeouts import Timeout, timeout_at

T = TypeVar("T")

# A backend keeps the deadline itself and knows whether anything was charged by then; only where it
# does not, or where the caller reads too slowly, the call is ended from outside.
_DEADLINE_SLACK_S = 0.5
# How long an answer waits for the books at least, however late it is.
_BOOKS_S_MIN = 5.0


class Asking(Protocol):
    """The request behind a call, as far as the call needs to know it."""

    @property
    def operation(self) -> str: ...

    @property
    def on_leave(self) -> Callable[[Callable[[], None]], None]:
        """Registers what is to be done when the caller leaves."""
        ...

    def error_words(self, error: BaseException) -> tuple[int, str]:
        """The status and the code under which the caller sees an error."""
        ...


class NamedPolicies(Protocol):
    async def require_published(self, call: Call) -> None:
        """Raises NotFound where a policy that the call names is not published."""
        ...


@dataclass(frozen=True, slots=True)
class InferenceLimits:
    deadline_s: float
    # A caller has left: how long, and for how many such calls at once, the rest is still read.
    drain_s: float
    drains_max: int
    # Under enforcing response policies: judge whenever so many characters have come; 0: at the end.
    segment_characters: int = 0
    # Requests are judged beside the backend's work, which may be paid and thrown away.
    judges_beside: bool = False


class Judged(msgspec.Struct, frozen=True):
    """A request that policies had nothing against, or whose verdict is on its way."""

    # Those that judge the answer.
    policies: tuple[ActivePolicy, ...] = ()
    verdict: asyncio.Task[None] | None = None


_UNJUDGED = Judged()


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A call that came to its proper end, and is settled."""

    usage: Usage
    settlement: Settlement


class BooksAreLate(Unavailable):
    """The cost of the call could not be written down in time; it is written as soon as it can."""


class LiveCall:
    """A call under way, as seen by those who may want it to end sooner."""

    def __init__(self) -> None:
        self.abandoned = False
        self.stopped = False
        # Why it may not go on, where its request was judged while the backend worked.
        self.refusal: BaseException | None = None
        self._timeout: Timeout | None = None
        self._slack_s = 0.0
        self._ends_at: float | None = None

    def bind(self, timeout: Timeout, *, slack_s: float = 0.0) -> None:
        """From now on this is what a wish to end sooner moves, and by how much it may be late."""
        self._timeout = timeout
        self._slack_s = slack_s
        if self._ends_at is not None:
            self._move(timeout, self._ends_at)

    def unbind(self) -> None:
        self._timeout = None

    def end_by(self, when: float) -> None:
        self._ends_at = when
        if self._timeout is not None:
            self._move(self._timeout, when)

    def judged(self, verdict: asyncio.Task[None]) -> None:
        if not verdict.cancelled() and verdict.exception() is not None:
            self.refusal = verdict.exception()
            self.end_by(asyncio.get_running_loop().time())

    def _move(self, timeout: Timeout, when: float) -> None:
        timeout.move(min(when + self._slack_s, timeout.when))


class Inference:
    def __init__(
        self,
        admission: Admission,
        backends: Mapping[str, Backend],
        limits: InferenceLimits,
        *,
        policies: NamedPolicies,
        checks: PolicyChecks,
        chronicle: Chronicle,
    ) -> None:
        self._admission = admission
        self._backends = backends
        self._limits = limits
        self._policies = policies
        self._checks = checks
        self._chronicle = chronicle
        self._live: dict[asyncio.Task[Outcome], LiveCall] = {}

    async def infer(
        self,
        call: Call,
        sink: Taking,
        asking: Asking,
    ) -> Outcome:
        """Runs the call to its end. Raises domain errors; what the sink has taken by then stays
        taken. Cancelling the waiting does not cancel the call."""
        live = LiveCall()
        story = CallStory(call, asking.operation)
        task = asyncio.create_task(self._told(story, sink, live, asking))
        self._live[task] = live
        task.add_done_callback(self._forget)
        asking.on_leave(lambda: self._abandon(live))
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

    async def _told(
        self,
        story: CallStory,
        sink: Taking,
        live: LiveCall,
        asking: Asking,
    ) -> Outcome:
        try:
            outcome = await self._run(story, sink, live)
        except BaseException as exc:
            self._chronicle.ended(story, *asking.error_words(exc))
            raise
        self._chronicle.ended(story, 200, None)
        return outcome

    async def _run(self, story: CallStory, sink: Taking, live: LiveCall) -> Outcome:
        call = story.call
        deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
        backend = self._backends[call.model.backend]
        if call.policy_ids:
            await self._policies.require_published(call)
        size = measure_prompt(call.prompt)
        prompt_tokens = await self._prompt_tokens(backend, call, size)
        reservation = await self._admission.reserve(call, prompt_tokens, size.images)
        story.reservation = reservation
        meter = story.meter = Meter(call, prompt_tokens)
        try:
            judged = await self._judged_request(story, reservation, deadline, live)
            await self._deliver(story, backend, deadline, judged, sink, live)
        except TollkeeperError as exc:
            resolving = self._resolve_failure(story, reservation, meter, live, exc)
            with contextlib.suppress(BooksAreLate):
                await _booked(resolving, deadline, live)
            raise
        except BaseException:
            # A fault of ours after dispatch: nobody knows what the backend has done.
            story.settlement = "unsettled"
            reason = "the gateway failed during the call"
            with contextlib.suppress(BooksAreLate):
                await _booked(self._admission.leave_unsettled(reservation, reason), deadline, live)
            raise
        settlement = await _booked(self._settle(story, reservation, meter), deadline, live)
        return Outcome(meter.usage or meter.estimate(), settlement)

    async def _prompt_tokens(self, backend: Backend, call: Call, size: PromptSize) -> int:
        """Exact where the backend can count, else the estimate; no prompt exceeds the context."""
        deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
        counted = await backend.count_prompt_tokens(call, deadline=deadline)
        context = call.model.context_length
        return size.bound(context) if counted is None else min(counted, context)

    async def _judged_request(
        self, story: CallStory, reservation: Reservation, deadline: float, live: LiveCall
    ) -> Judged:
        """Asks the policies of this call's admission about its request."""
        call = story.call
        if reservation.policies is None and not call.policy_ids:
            return _UNJUDGED
        policies = (reservation.policies or EMPTY).applying(call.project_id, call.policy_ids)
        answered = tuple(policy for policy in policies if policy.judges(Direction.RESPONSE))
        if not any(policy.judges(Direction.REQUEST) for policy in policies):
            return Judged(answered)
        asked = (policies, Direction.REQUEST, transcript(call.prompt), story.evidence)
        if self._limits.judges_beside:
            verdict = self._checks.check_beside(*asked)
            if verdict is not None:
                verdict.add_done_callback(live.judged)
            return Judged(answered, verdict)
        try:
            with timeout_at(deadline) as timeout:
                live.bind(timeout)
                await self._checks.check(*asked)
        except TimeoutError:
            if live.abandoned or live.stopped:
                raise _unsent() from None
            raise DeadlineExceeded from None
        finally:
            live.unbind()
        return Judged(answered)

    async def _deliver(
        self,
        story: CallStory,
        backend: Backend,
        deadline: float,
        judged: Judged,
        sink: Taking,
        live: LiveCall,
    ) -> None:
        """Reads the answer to its proper end and hands it on."""
        if live.abandoned or live.stopped:
            # Nothing has left yet: nobody wants the answer any more, so nobody pays for it.
            raise _unsent()
        gate = None
        if judged.policies or judged.verdict is not None:
            gate = ResponseGate(
                sink,
                judged.policies,
                self._checks,
                story.evidence,
                # Who does not read pieces gains nothing from segments.
                segment_characters=self._limits.segment_characters if story.call.streamed else 0,
                request_verdict=judged.verdict,
            )
        meter, taking = story.meter, gate or sink
        assert meter is not None
        opened = False
        try:
            with timeout_at(deadline + _DEADLINE_SLACK_S) as timeout:
                live.bind(timeout)
                async with backend.open(story.call, deadline=deadline) as answer:
                    opened = True
                    story.replica = answer.replica
                    async for batch in answer.batches:
                        story.piece_came()
                        meter.count(batch)
                        await taking.take(batch)
                if gate is not None:
                    await gate.finish()
        except TimeoutError:
            raise _ended_early(live, opened) from None
        finally:
            live.unbind()
            if gate is not None:
                gate.close()

    async def _resolve_failure(
        self,
        story: CallStory,
        reservation: Reservation,
        meter: Meter,
        live: LiveCall,
        error: TollkeeperError,
    ) -> None:
        unwanted = live.abandoned or live.refusal is not None
        if meter.delivered or meter.usage is not None or (unwanted and error.charged):
            # Something was delivered, or nobody wants what the backend works at: it is paid.
            error.charged = True
            await self._settle(story, reservation, meter)
        elif error.charged:
            story.settlement = "unsettled"
            await self._admission.leave_unsettled(reservation, error.message)
        else:
            story.settlement = "released"
            await self._admission.release(reservation)

    async def _settle(self, story: CallStory, reservation: Reservation, meter: Meter) -> Settlement:
        usage = meter.usage or meter.estimate()
        # Until the books have it, nobody may call it settled.
        story.settlement = "unsettled"
        story.settled = await self._admission.settle(
            reservation, usage, estimated=meter.usage is None
        )
        story.settlement = "settled"
        return story.settled


def _unsent() -> Unavailable:
    return Unavailable("The call ended before it was dispatched.", retry_after_s=1)


def _ended_early(live: LiveCall, opened: bool) -> BaseException:
    if live.refusal is not None:
        if isinstance(live.refusal, TollkeeperError):
            live.refusal.charged = True
        return live.refusal
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
        with timeout_at(max(deadline, soonest)) as timeout:
            live.bind(timeout, slack_s=_BOOKS_S_MIN)
            return await writing
    except TimeoutError:
        raise BooksAreLate(charged=True) from None
    finally:
        live.unbind()
