"""Stores the state of one call, its tab: the hold (the credit that is reserved for the call), the
usage, the outcome, and the time by which the call must end."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from time import perf_counter_ns, time_ns
from typing import Protocol

import msgspec

from tollkeeper.backends.port import TextFunctions, TextWriter
from tollkeeper.domain.activity import ActivityRecord, VerdictRecord
from tollkeeper.domain.inference import Batch, Call
from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.domain.pricing import Pricing
from tollkeeper.domain.prompt import File
from tollkeeper.domain.usage import ReportedUsage, Usage
from tollkeeper.runtime.timeouts import Alarm
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.overload import OwnerCalls
from tollkeeper.services.policies.checks import Evidence


class AnswerSink(Protocol):
    """Receives the events of an answer and delivers them to the client."""

    async def take(self, batch: Batch) -> None: ...

    def held_back(self) -> None:
        """Is called when the answer has begun, but the gateway holds its events back until policies
        have judged them."""
        ...

    def text_writer(self) -> TextWriter | None:
        """Returns a function that writes text directly to the client. The first batch of events
        must have been delivered before. Returns None if the sink needs the whole answer as
        events."""
        ...


class AnswerCollector(Protocol):
    def add(self, batch: Batch) -> None:
        """Receives events that were delivered to the client. Neither blocks nor raises."""
        ...


class CallSpan(Protocol):
    """Represents the tracing span of one running call."""

    @property
    def answer(self) -> AnswerCollector | None:
        """Returns the collector for the answer; None if the settings exclude content from spans."""
        ...

    @property
    def traceparent(self) -> bytes:
        """Returns the `traceparent` header value that makes the backend's span a child of this
        span."""
        ...

    def ended(self, record: ActivityRecord) -> None:
        """Ends the span. Neither blocks nor raises."""
        ...


class CallTracer(Protocol):
    """Starts the spans of calls. Tracing is optional; `bootstrap` creates the tracer."""

    def started(self, call: Call) -> CallSpan: ...

    def close(self) -> None:
        """Exports the remaining spans, within a time limit. Blocks."""
        ...


# A call may wait this long for the ledger to write its settlement, even after the call's deadline
# or the time set by `Tab.end_by`.
SETTLEMENT_S_MIN = 5.0


class SettlementState(StrEnum):
    """Lists the possible states of a call's reservation when the call has ended."""

    # Nothing was reserved.
    NONE = "none"
    SETTLED = "settled"
    RELEASED = "released"
    UNSETTLED = "unsettled"


class _NoCharge(ReportedUsage, frozen=True, gc=False):
    """Stands for the charge of a call that is not settled: all counts are None."""

    estimated: bool = False


_NO_CHARGE = _NoCharge()


class Tab(msgspec.Struct, eq=False):
    """Stores the state of one call, from its arrival until the recorder has copied its values."""

    call: Call
    plan: Plan
    sink: AnswerSink
    operation: str
    # A time of the event loop's clock.
    deadline: float
    # Limits how long the task of this call waits; see `waiting_until`.
    alarm: Alarm
    # The counters of the organization's calls.
    owner_calls: OwnerCalls
    # Counts the usage of the answer.
    meter: Meter
    # Admission sets the committed hold, the policies in force, and the prices by backend. `prices`
    # is empty if the model has only one backend. The hold is computed with the highest prices.
    hold: Hold | None = None
    hold_picousd: int | None = None
    # The overage that was expected when the call was admitted, because its model or its request is
    # declared to have it.
    declared_overage_picousd: int = 0
    policies: PolicySet | None = None
    prices: dict[str, Pricing] = {}
    # `charge` is the usage that the meter computes at the end of the call. `cost_picousd` and
    # `charged` are set when the ledger has written the settlement.
    charge: Usage | None = None
    cost_picousd: int | None = None
    charged: Usage | _NoCharge = _NO_CHARGE
    state: SettlementState = SettlementState.NONE
    # The backend to which the call was sent: the model's first backend, until another one answers.
    backend: str | None = None
    # The replica that answers.
    replica: str | None = None
    # Whether the request was sent to the backend. Before, the backend cannot charge for the call.
    sent: bool = False
    # Whether the answer was read to its end. Policies may still judge it.
    is_read: bool = False
    # Whether the prompt was sent to the backend's tokenizer for this call.
    tokenizer_asked: bool = False
    # The verdicts of policies; None if no policy applies to the call.
    evidence: Evidence | None = None
    verdicts: tuple[VerdictRecord, ...] = ()
    # Set if calls are traced.
    span: CallSpan | None = None
    # Whether the client disconnected before the answer was complete.
    abandoned: bool = False
    # Whether the process is stopping.
    stopped: bool = False
    # The error that ends the call, if the policy check ran at the same time as the backend and
    # rejected the request.
    refusal: BaseException | None = None
    # The status that the client received, and the error code if the call failed.
    status: int = 200
    error_code: str | None = None
    error_param: str | None = None
    error_message: str | None = None
    # The start of the call, as a time of `time.time_ns` and of `time.perf_counter_ns`.
    started_ns: int = msgspec.field(default_factory=time_ns)
    started_at: int = msgspec.field(default_factory=perf_counter_ns)
    # Further times of `time.perf_counter_ns`, 0 until then: the dispatch, the first piece (the first
    # batch of events of the answer), the end of the answer, and the end of the call.
    dispatched_at: int = 0
    first_piece_at: int = 0
    answered_at: int = 0
    ended_at: int = 0
    # The time that the judge took.
    judging_ns: int = 0
    # The time by which the call must end; set by `end_by`. A time of the event loop's clock.
    ends_by: float | None = None

    @property
    def usage(self) -> Usage:
        """Returns the usage for which a settled call is charged."""
        assert self.charge is not None
        return self.charge

    @property
    def backend_name(self) -> str:
        """Returns the backend to which the call was sent or would have been sent."""
        return self.backend or self.call.model.backend

    @property
    def is_billed_to_end(self) -> bool:
        """Tells whether the backend bills the whole answer, even if the gateway stops reading it."""
        return self.call.model.served_by(self.backend_name).is_billed_to_end

    @property
    def has_ended_early(self) -> bool:
        """Tells whether the call had to end: the deadline passed, the client had disconnected, the
        process stops, or a policy denied the request while the backend worked."""
        limit = self.deadline if self.ends_by is None else min(self.deadline, self.ends_by)
        return self.alarm.now() >= limit

    def waiting_until(self, when: float) -> Alarm:
        """Returns a context manager that raises TimeoutError if its block still waits at `when`, or
        at the time set by `end_by`, whichever is earlier. The wait for the settlement may last
        `SETTLEMENT_S_MIN` seconds beyond the time set by `end_by`."""
        if self.ends_by is not None:
            when = min(when, self.ends_by + self._slack_s)
        return self.alarm.until(when)

    def end_by(self, when: float) -> None:
        """Ends the current wait and all later waits of the call by this time, or by an earlier time that
        was set before. The alarm does not limit the wait for the hold, because the gateway must learn
        whether the hold was written. After the end of the call, the alarm may belong to another call."""
        when = self.ends_by = when if self.ends_by is None else min(self.ends_by, when)
        limit = self.alarm.when
        if limit is not None and not self.ended_at:
            self.alarm.move(min(when + self._slack_s, limit))

    @property
    def _slack_s(self) -> float:
        return 0.0 if self.state is SettlementState.NONE else SETTLEMENT_S_MIN

    def end_at_once(self) -> None:
        """Ends the current wait at once, even if its result would be available in the same
        iteration of the event loop."""
        self.end_by(asyncio.get_running_loop().time())
        self.alarm.expire()

    def end_if_refused(self, request_check: asyncio.Task[None]) -> None:
        """Ends the call if the policy check of its request, which ran at the same time as the
        backend, has failed."""
        if not request_check.cancelled() and request_check.exception() is not None:
            self.refusal = request_check.exception()
            self.end_by(asyncio.get_running_loop().time())

    def take(self, batch: Batch) -> Awaitable[None]:
        """Receives events of the answer: counts their usage, and delivers them."""
        if not self.first_piece_at:
            self.first_piece_at = perf_counter_ns()
        self.meter.count(batch)
        return self.sink.take(batch)

    def text_functions(self) -> TextFunctions | None:
        """Returns functions that write text directly to the client's connection, without waking the
        task of this call, and count the text. Returns None if the sink does not support this."""
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
        """Tells whether the backend may bill a failed answer although its tokens are free, because it may
        have used tools, written images or converted files."""
        assert self.hold is not None
        bounds = self.hold.bounds
        return (
            bounds.web_searches > 0
            or bounds.writes_images
            or any(isinstance(part, File) for part in self.call.prompt.media)
        )

    @property
    def waits_to_be_sent(self) -> bool:
        """Tells whether the call was dispatched but still waits for a connection."""
        return self.dispatched_at > 0 and not self.answered_at and not self.sent

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Measures the time that the call waits for verdicts on its request. The call is not active
        meanwhile."""
        started = perf_counter_ns()
        self.owner_calls.waiting += 1
        try:
            yield
        finally:
            self.owner_calls.waiting -= 1
            self.judging_ns += perf_counter_ns() - started
