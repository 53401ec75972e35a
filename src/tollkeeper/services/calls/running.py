"""One call under way: what is known of it, and the wishes of others that it end sooner."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from tollkeeper.backends.port import Answer, BackendCall, TextWriter
from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch, Call
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.usage import ReportedUsage, Usage
from tollkeeper.services.calls.tracing import CallSpan
from tollkeeper.services.ledger.admission import Reservation, Settlement
from tollkeeper.services.policies.checks import Evidence
from tollkeeper.timeouts import Alarm

_NO_USAGE = ReportedUsage()


class AnswerSink(Protocol):
    """Where an answer is delivered."""

    async def take(self, batch: Batch) -> None: ...

    def held_back(self) -> None:
        """The answer has begun, but nothing of it may be delivered yet, perhaps for long."""
        ...

    def text_writer(self) -> TextWriter | None:
        """What delivers text at once, from the second batch on; None where all of the answer has
        to come as events."""
        ...


class SettlementState(StrEnum):
    """What became of the reservation."""

    # Nothing was reserved.
    NONE = "none"
    SETTLED = "settled"
    RELEASED = "released"
    UNSETTLED = "unsettled"


class RunningCall:
    """The state of one call, from its arrival to its activity record."""

    # What is so at first.
    reservation: Reservation | None = None
    meter: Meter | None = None
    replica: str | None = None
    settlement_state = SettlementState.NONE
    settlement: Settlement | None = None
    # While the backend has the call.
    backend_call: BackendCall | None = None
    # Where calls are traced.
    span: CallSpan | None = None
    # The caller left before the answer was complete.
    abandoned = False
    # The process ends.
    stopped = False
    # Why the call may not go on, where its request was judged while the backend worked.
    refusal: BaseException | None = None
    # Times of the monotonic clock, in nanoseconds.
    _first_piece: int | None = None
    _ended: int | None = None
    _prompts_begun: Callable[[], int] | None = None
    _dispatched: int | None = None
    _answered: int | None = None
    _judging_ns = 0
    # Somebody wants the call to end by then.
    _ends_by: float | None = None
    # By how much the present wait may exceed that. None before the first wait that it concerns, and
    # when the call is over: the alarm then serves another one.
    _slack_s: float | None = None

    def __init__(
        self, call: Call, operation: str, sink: AnswerSink, *, deadline: float, alarm: Alarm
    ) -> None:
        self.call = call
        # The organization, for counts: the hash of an integer is faster than that of an id.
        self.owner = call.organization_id.int
        self.sink = sink
        # A time of the loop's clock.
        self.deadline = deadline
        # Bounds the waits of the call, which runs in one task.
        self.alarm = alarm
        # Of several backends of a model, the one that answers; before that, the first.
        self.backend = call.model.backend
        self.tokenizer_asked = call.tokenizer_asked
        self.evidence = Evidence()
        self._operation = operation
        self._started_at_ms = time.time_ns() // 1_000_000
        self._started = time.perf_counter_ns()

    @property
    def unwanted(self) -> bool:
        """The caller left, or the gateway is stopping: the answer will not be read."""
        return self.abandoned or self.stopped

    def reserved(self, reservation: Reservation, meter: Meter) -> None:
        self.reservation, self.meter = reservation, meter

    def waiting_until(self, when: float, *, slack_s: float = 0.0) -> Alarm:
        """Bounds the block by `when`, and by the time that others want the call to end; the
        latter may be exceeded by `slack_s`. Raises TimeoutError."""
        self._slack_s = slack_s
        if self._ends_by is not None:
            when = min(when, self._ends_by + slack_s)
        return self.alarm.until(when)

    def end_by(self, when: float) -> None:
        """Somebody wants the call to end by then: its present wait and all later ones do."""
        self._ends_by = when
        if self._slack_s is not None:
            self.alarm.move(min(when + self._slack_s, self.alarm.when))

    def end_at_once(self) -> None:
        """Ends the present wait in this turn of the loop, whatever has happened in it before."""
        self.end_by(asyncio.get_running_loop().time())
        self.alarm.expire()

    def waits_no_more(self) -> None:
        """The call is over, and its alarm is given back."""
        self._slack_s = None

    def end_if_refused(self, verdict: asyncio.Task[None]) -> None:
        """Ends the call where the verdict on its request, which came late, is an error."""
        if not verdict.cancelled() and verdict.exception() is not None:
            self.refusal = verdict.exception()
            self.end_by(asyncio.get_running_loop().time())

    def served_by(self, answer: Answer) -> None:
        """A backend has begun to answer: from now on its prices apply, and its number of prompts."""
        self.replica = answer.replica
        self.backend = answer.backend or self.backend
        if answer.prompts and self.meter is not None:
            self.meter.send_prompts(answer.prompts)
        self._prompts_begun = answer.prompts_begun

    def relay_text(self, answer: Answer) -> None:
        """Lets text go from the backend's connection to the caller's without a turn of the call's
        task, where both sides can do so. It is counted all the same."""
        if answer.relay_text is not None and self.meter is not None:
            write = self.sink.text_writer()
            if write is not None:
                answer.relay_text(write, self.meter.count_text)

    def count(self, batch: Batch) -> None:
        """Counts what the backend delivers."""
        if self._first_piece is None:
            self._first_piece = time.perf_counter_ns()
        assert self.meter is not None
        self.meter.count(batch)

    def dispatched(self) -> None:
        """The call goes to its backend now."""
        self._dispatched = time.perf_counter_ns()

    @property
    def waits_to_be_sent(self) -> bool:
        """The call was dispatched, and its request has not left: it waits for a connection."""
        return self.backend_call is not None and not self.backend_call.sent

    def answered(self) -> None:
        """The backend has nothing more to do for the call."""
        self._answered = time.perf_counter_ns()
        self.backend_call = None
        if self._prompts_begun is not None and self.meter is not None:
            # Something of the answer has come, so at least one prompt was sent.
            self.meter.send_prompts(max(1, self._prompts_begun()))

    @contextmanager
    def judging(self) -> Iterator[None]:
        """The call waits for verdicts on its request."""
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self._judging_ns += time.perf_counter_ns() - started

    def end(self) -> None:
        """The call is over; only its record is left to be written."""
        if self._ended is None:
            self._ended = time.perf_counter_ns()

    def record(self, status: int, error_code: str | None) -> ActivityRecord:
        """The record of a call that is over."""
        assert self._ended is not None
        call, meter, settlement = self.call, self.meter, self.settlement
        started, first, sent = self._started, self._first_piece, self._dispatched
        duration_us = (self._ended - started) // 1000
        finish = reported = reported_cost = hold = cost = upstream_us = overhead_us = None
        if meter is not None and self.reservation is not None:
            finish, reported, hold = meter.finish, meter.reported, self.reservation.hold_picousd
            reported_cost = None if meter.report is None else meter.report.cost_picousd
        usage: Usage | ReportedUsage = _NO_USAGE
        estimated = False
        if settlement is not None:
            usage, estimated = settlement.usage, settlement.estimated
            cost = settlement.cost_picousd
        if sent is not None:
            upstream_us = ((self._answered or self._ended) - sent) // 1000
            overhead_us = max(0, duration_us - upstream_us - self._judging_ns // 1000)
        return ActivityRecord(
            request_id=call.request_id,
            organization_id=call.organization_id,
            project_id=call.project_id,
            key_id=call.key_id,
            operation=self._operation,
            model=call.model.id,
            streamed=call.streamed,
            started_at_ms=self._started_at_ms,
            duration_us=duration_us,
            first_piece_us=None if first is None else (first - started) // 1000,
            status=status,
            error_code=error_code,
            finish=finish,
            estimated=estimated,
            hold_picousd=hold,
            cost_picousd=cost,
            settlement=self.settlement_state,
            backend=None if sent is None else self.backend,
            replica=self.replica,
            declared_backend=call.model.backend,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
            web_searches=usage.web_searches,
            input_audio_tokens=usage.input_audio_tokens,
            output_audio_tokens=usage.output_audio_tokens,
            service_tier=usage.service_tier,
            verdicts=self.evidence.verdicts,
            reported_usage=reported,
            reported_cost_picousd=reported_cost,
            dispatched_us=None if sent is None else (sent - started) // 1000,
            upstream_us=upstream_us,
            overhead_us=overhead_us,
        )
