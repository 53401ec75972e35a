"""The state of one call: hold, usage, outcome, and when it must end."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from time import perf_counter_ns, time_ns
from typing import Protocol

import msgspec

from tollkeeper.calls.plans import Plan
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.inference import Batch, Call
from tollkeeper.core.metering import Meter
from tollkeeper.core.port import TextFunctions, TextWriter
from tollkeeper.core.pricing import Pricing
from tollkeeper.core.prompt import File
from tollkeeper.core.runtime.overload import OwnerCalls
from tollkeeper.core.runtime.timeouts import Alarm
from tollkeeper.core.usage import ReportedUsage, Usage
from tollkeeper.money.holds.values import Hold
from tollkeeper.policies.checks import Evidence
from tollkeeper.policies.policy_set import PolicySet


class AnswerSink(Protocol):
    """Delivers an answer to the client."""

    async def take(self, batch: Batch) -> None: ...

    def held_back(self) -> None:
        """The answer has begun, but policies must judge it first."""
        ...

    def text_writer(self) -> TextWriter | None:
        """Writes text directly to the client, once the first batch of events is delivered. None if
        the sink needs the whole answer as events."""
        ...


class AnswerCollector(Protocol):
    def add(self, batch: Batch) -> None:
        """These events were delivered. Neither blocks nor raises."""
        ...


class CallSpan(Protocol):
    @property
    def answer(self) -> AnswerCollector | None:
        """None if the settings keep content out of spans."""
        ...

    @property
    def traceparent(self) -> bytes:
        """Makes the backend's span a child of this one."""
        ...

    def ended(self, record: ActivityRecord) -> None:
        """Neither blocks nor raises."""
        ...


class CallTracer(Protocol):
    """Tracing is optional; `bootstrap` creates the tracer."""

    def started(self, call: Call) -> CallSpan: ...

    def close(self) -> None:
        """Exports what's left, within a time limit. Blocks."""
        ...


# A call may wait this long for its settlement, even after its deadline or `Tab.end_by`.
SETTLEMENT_S_MIN = 5.0


class SettlementState(StrEnum):
    """Of a call's hold, when the call has ended."""

    NONE = "none"
    SETTLED = "settled"
    RELEASED = "released"
    UNSETTLED = "unsettled"


class _NoCharge(ReportedUsage, frozen=True, gc=False):
    """For a call that isn't settled."""

    estimated: bool = False


_NO_CHARGE = _NoCharge()


class Tab(msgspec.Struct, eq=False):
    """Lives until the recorder has copied its values."""

    call: Call
    plan: Plan
    sink: AnswerSink
    operation: str
    # Of the event loop's clock.
    deadline: float
    # Limits the waits of this call's task; see `waiting_until`.
    alarm: Alarm
    # Of the organization.
    owner_calls: OwnerCalls
    meter: Meter
    # Admission sets these once the hold is committed. `prices` is by backend, and empty if there's
    # only one. The hold is at the highest prices.
    hold: Hold | None = None
    hold_picousd: int | None = None
    # Expected at admission, because the model or the request is declared to have it.
    declared_overage_picousd: int = 0
    policies: PolicySet | None = None
    prices: dict[str, Pricing] = {}
    # `charge` is what the meter computes at the end. `cost_picousd` and `charged` are set once the
    # ledger has written the settlement.
    charge: Usage | None = None
    cost_picousd: int | None = None
    charged: Usage | _NoCharge = _NO_CHARGE
    state: SettlementState = SettlementState.NONE
    # The model's first backend, until another one answers.
    backend: str | None = None
    replica: str | None = None
    # Until then, the backend can't charge.
    sent: bool = False
    # Policies may still be judging it.
    is_read: bool = False
    # For this call.
    tokenizer_asked: bool = False
    # None if no policy applies.
    evidence: Evidence | None = None
    verdicts: tuple[VerdictRecord, ...] = ()
    span: CallSpan | None = None
    # The client disconnected before the answer was complete.
    abandoned: bool = False
    # The process is stopping.
    stopped: bool = False
    # From a policy check that ran beside the backend.
    refusal: BaseException | None = None
    # What the client got.
    status: int = 200
    error_code: str | None = None
    error_param: str | None = None
    error_message: str | None = None
    # Of `time_ns` and `perf_counter_ns`.
    started_ns: int = msgspec.field(default_factory=time_ns)
    started_at: int = msgspec.field(default_factory=perf_counter_ns)
    # Also of `perf_counter_ns`, 0 until then.
    dispatched_at: int = 0
    first_piece_at: int = 0
    answered_at: int = 0
    ended_at: int = 0
    judging_ns: int = 0
    # Set by `end_by`, on the event loop's clock.
    ends_by: float | None = None

    @property
    def usage(self) -> Usage:
        """Of a settled call."""
        assert self.charge is not None
        return self.charge

    @property
    def backend_name(self) -> str:
        """The one that the call was or would have been sent to."""
        return self.backend or self.call.model.backend

    @property
    def is_billed_to_end(self) -> bool:
        """Even if the gateway stops reading."""
        return self.call.model.served_by(self.backend_name).is_billed_to_end

    @property
    def has_ended_early(self) -> bool:
        limit = self.deadline if self.ends_by is None else min(self.deadline, self.ends_by)
        return self.alarm.now() >= limit

    def waiting_until(self, when: float) -> Alarm:
        """Raises TimeoutError if its block still waits at `when` or what `end_by` set. The wait for
        the settlement may last `SETTLEMENT_S_MIN` longer than `end_by` says."""
        if self.ends_by is not None:
            when = min(when, self.ends_by + self._slack_s)
        return self.alarm.until(when)

    def end_by(self, when: float) -> None:
        """Ends all waits of the call by then, except the one for the hold: the gateway must learn
        whether it was written. Once the call has ended, its alarm may belong to another."""
        when = self.ends_by = when if self.ends_by is None else min(self.ends_by, when)
        limit = self.alarm.when
        if limit is not None and not self.ended_at:
            self.alarm.move(min(when + self._slack_s, limit))

    @property
    def _slack_s(self) -> float:
        return 0.0 if self.state is SettlementState.NONE else SETTLEMENT_S_MIN

    def end_at_once(self) -> None:
        """Even if the result would be there in the same iteration of the event loop."""
        self.end_by(asyncio.get_running_loop().time())
        self.alarm.expire()

    def end_if_refused(self, request_check: asyncio.Task[None]) -> None:
        if not request_check.cancelled() and request_check.exception() is not None:
            self.refusal = request_check.exception()
            self.end_by(asyncio.get_running_loop().time())

    def take(self, batch: Batch) -> Awaitable[None]:
        if not self.first_piece_at:
            self.first_piece_at = perf_counter_ns()
        self.meter.count(batch)
        return self.sink.take(batch)

    def text_functions(self) -> TextFunctions | None:
        """They write text straight to the connection and count it, without waking this call's task.
        None if the sink can't."""
        write = self.sink.text_writer()
        return None if write is None else (write, self.meter.count_text)

    def set_prompts_sent(self, prompts: int, choices: int) -> None:
        self.meter.set_prompts_sent(prompts, choices)

    def set_parts(self, parts: Sequence[Meter]) -> None:
        assert self.hold is not None
        charged = [part for part in parts if self.may_cost_fees or not part.is_free]
        self.meter.set_parts(charged, self.hold.bounds)

    @property
    def may_cost_fees(self) -> bool:
        """The backend may bill a failed answer whose tokens are free, because it may have used
        tools, written images or converted files."""
        assert self.hold is not None
        bounds = self.hold.bounds
        return (
            bounds.web_searches > 0
            or bounds.writes_images
            or any(isinstance(part, File) for part in self.call.prompt.media)
        )

    @property
    def waits_to_be_sent(self) -> bool:
        """Dispatched, but there's no connection yet."""
        return self.dispatched_at > 0 and not self.answered_at and not self.sent

    @contextmanager
    def judging(self) -> Iterator[None]:
        """The call isn't active meanwhile."""
        started = perf_counter_ns()
        self.owner_calls.waiting += 1
        try:
            yield
        finally:
            self.owner_calls.waiting -= 1
            self.judging_ns += perf_counter_ns() - started
