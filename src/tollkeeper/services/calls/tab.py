"""Stores the state of one call, its tab: the hold (the credit that is reserved for the call), the
usage, the outcome, and the time by which the call must end."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from operator import attrgetter
from typing import Protocol

from tollkeeper.backends.port import Answer, BackendCall, TextWriter
from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch, Call
from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.metering import Charge, Meter
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.domain.pricing import Pricing
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import ReportedUsage, Usage
from tollkeeper.runtime.timeouts import Alarm
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.calls.tracing import CallSpan
from tollkeeper.services.policies.checks import Evidence

_NO_USAGE = ReportedUsage()
# Reads the values of a call's activity record from its tab, in the order of the fields of
# `ActivityRecord`.
_RECORD_VALUES = attrgetter(
    *("call.request_id", "call.organization_id", "call.project_id", "call.key_id"),
    *("operation", "call.model.id", "call.streamed", "started_at_ms", "duration_us"),
    *("first_piece_us", "status", "error_code", "finish", "estimated", "hold_picousd"),
    *("cost_picousd", "state", "dispatched_to", "replica", "call.model.backend"),
    *("charged.prompt_tokens", "charged.completion_tokens", "charged.cached_tokens"),
    *("charged.reasoning_tokens", "charged.cache_write_tokens", "charged.cache_write_1h_tokens"),
    *("charged.web_searches", "charged.input_audio_tokens", "charged.output_audio_tokens"),
    *("charged.service_tier", "evidence.verdicts", "reported", "reported_cost_picousd"),
    *("dispatched_us", "upstream_us", "overhead_us", "verdict_picousd"),
)


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


class SettlementState(StrEnum):
    """Lists the possible states of a call's reservation when the call has ended."""

    # Nothing was reserved.
    NONE = "none"
    SETTLED = "settled"
    RELEASED = "released"
    UNSETTLED = "unsettled"


class Tab:
    """Stores the state of one call, from its arrival until its activity record is written."""

    # Admission sets the committed hold, the policies in force, and the prices by backend. `prices`
    # is empty if the model has only one backend. The hold is computed with the highest prices.
    hold: Hold | None = None
    policies: PolicySet | None = None
    prices: dict[str, Pricing] = {}
    # The meter counts the usage of the answer. `charge` is the usage that the meter computes at the
    # end of the call. `cost_picousd` is set when the ledger has written the settlement.
    meter: Meter | None = None
    charge: Charge | None = None
    cost_picousd: int | None = None
    # The part of the cost that pays for policy verdicts.
    verdict_picousd = 0
    state = SettlementState.NONE
    replica: str | None = None
    # Set from the dispatch of the call until the backend has finished it.
    backend_call: BackendCall | None = None
    # Set if calls are traced.
    span: CallSpan | None = None
    # Whether the client disconnected before the answer was complete.
    abandoned = False
    # Whether the process is stopping.
    stopped = False
    # The error that ends the call, if the policy check ran at the same time as the backend and
    # rejected the request.
    refusal: BaseException | None = None
    # Times of `time.perf_counter_ns`. The first piece is the first batch of events of the answer.
    first_piece_at: int | None = None
    dispatched_at: int | None = None
    answered_at: int | None = None
    ended_at: int | None = None
    judging_ns = 0
    # Further values of the activity record; `end` sets them.
    status = 200
    error_code: str | None = None
    charged: Usage | ReportedUsage = _NO_USAGE
    estimated = False
    duration_us = 0
    finish: str | None = None
    hold_picousd: int | None = None
    dispatched_to: str | None = None
    reported: FreeObject | None = None
    reported_cost_picousd: int | None = None
    first_piece_us: int | None = None
    dispatched_us: int | None = None
    upstream_us: int | None = None
    overhead_us: int | None = None
    # Returns the number of prompts that the call is charged for; set if one call sends several.
    _prompts_begun: Callable[[], int] | None = None
    # The time by which the call must end; set by `end_by`. A time of the event loop's clock.
    _ends_by: float | None = None
    # The number of seconds that the current wait may last beyond `_ends_by`. None before the first
    # wait, and after the end of the call: the alarm may then belong to another call and must not be
    # moved.
    _slack_s: float | None = None

    def __init__(
        self,
        call: Call,
        plan: Plan,
        sink: AnswerSink,
        operation: str,
        deadline: float,
        alarm: Alarm,
    ) -> None:
        self.call = call
        self.plan = plan
        self.sink = sink
        self.operation = operation
        # A time of the event loop's clock.
        self.deadline = deadline
        # Limits how long the task of this call waits; see `waiting_until`.
        self.alarm = alarm
        # The organization, as a key for counters. It is an integer, because an integer hashes
        # faster than a UUID.
        self.owner = call.organization_id.int
        # The model's first backend, until `served_by` sets the backend that answers.
        self.backend = call.model.backend
        self.tokenizer_asked = call.tokenizer_asked
        self.evidence = Evidence()
        self.started_at_ms = time.time_ns() // 1_000_000
        self.started_at = time.perf_counter_ns()

    @property
    def usage(self) -> Usage:
        """Returns the usage for which a settled call is charged."""
        assert self.charge is not None
        return self.charge.usage

    @property
    def unwanted(self) -> bool:
        """Tells whether the answer is no longer needed, because the client disconnected or the
        gateway is stopping."""
        return self.abandoned or self.stopped

    def waiting_until(self, when: float, *, slack_s: float = 0.0) -> Alarm:
        """Returns a context manager that raises TimeoutError if its block still waits at `when`, or
        `slack_s` seconds after the time set by `end_by`, whichever is earlier."""
        self._slack_s = slack_s
        if self._ends_by is not None:
            when = min(when, self._ends_by + slack_s)
        return self.alarm.until(when)

    def end_by(self, when: float) -> None:
        """Ends the current wait and all later waits of the call by this time."""
        self._ends_by = when
        if self._slack_s is not None:
            self.alarm.move(min(when + self._slack_s, self.alarm.when))

    def end_at_once(self) -> None:
        """Ends the current wait at once, even if its result would be available in the same
        iteration of the event loop."""
        self.end_by(asyncio.get_running_loop().time())
        self.alarm.expire()

    def detach_alarm(self) -> None:
        """Must be called at the end of the call. `end_by` then no longer moves the alarm, so that
        another call can use the alarm."""
        self._slack_s = None

    def end_if_refused(self, request_check: asyncio.Task[None]) -> None:
        """Ends the call if the policy check of its request, which ran at the same time as the
        backend, has failed."""
        if not request_check.cancelled() and request_check.exception() is not None:
            self.refusal = request_check.exception()
            self.end_by(asyncio.get_running_loop().time())

    def served_by(self, answer: Answer) -> None:
        """Records which backend has begun to answer. The call is charged at this backend's prices,
        and for as many prompts as this backend receives."""
        self.replica = answer.replica
        self.backend = answer.backend or self.backend
        if answer.prompts and self.meter is not None:
            self.meter.set_prompts_sent(answer.prompts)
        self._prompts_begun = answer.prompts_begun

    def relay_text(self, answer: Answer) -> None:
        """Lets the backend's connection write text directly to the client's connection, without
        waking the task of this call, if both sides support this. The meter still counts the
        text."""
        if answer.relay_text is not None and self.meter is not None:
            write = self.sink.text_writer()
            if write is not None:
                answer.relay_text(write, self.meter.count_text)

    @property
    def waits_to_be_sent(self) -> bool:
        """Tells whether the call was dispatched but still waits for a connection."""
        return self.backend_call is not None and not self.backend_call.sent

    def answered(self) -> None:
        """Records that the backend has finished the call."""
        self.answered_at = time.perf_counter_ns()
        self.backend_call = None
        if self._prompts_begun is not None and self.meter is not None:
            # The backend has begun to answer, so at least one prompt was sent.
            self.meter.set_prompts_sent(max(1, self._prompts_begun()))

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Measures the time that the call waits for verdicts on its request."""
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self.judging_ns += time.perf_counter_ns() - started

    def end(self, status: int, error_code: str | None) -> None:
        """Records the end of the call, and sets the values that `record` needs."""
        self.status, self.error_code = status, error_code
        self.ended_at = ended = time.perf_counter_ns()
        started, first, dispatched = self.started_at, self.first_piece_at, self.dispatched_at
        self.duration_us = duration_us = (ended - started) // 1000
        if first is not None:
            self.first_piece_us = (first - started) // 1000
        if dispatched is not None:
            self.dispatched_to = self.backend
            self.dispatched_us = (dispatched - started) // 1000
            self.upstream_us = upstream_us = ((self.answered_at or ended) - dispatched) // 1000
            self.overhead_us = max(0, duration_us - upstream_us - self.judging_ns // 1000)
        meter = self.meter
        if meter is not None and self.hold is not None:
            self.finish, self.reported = meter.finish, meter.reported
            self.hold_picousd = self.hold.hold_picousd
            self.reported_cost_picousd = None if meter.report is None else meter.report.cost_picousd
        if self.cost_picousd is not None and self.charge is not None:
            self.charged, self.estimated = self.charge.usage, self.charge.estimated

    def record(self) -> ActivityRecord:
        """Returns the record of an ended call."""
        return ActivityRecord(*_RECORD_VALUES(self))
