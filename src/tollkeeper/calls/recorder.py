"""Compares ended calls with their holds, the model's context and the cost that the backend reports,
and passes their records in groups to the activity table, the metrics and the request log."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, floordiv, getitem, sub
from typing import Any

import structlog
from msgspec.structs import astuple, replace

from tollkeeper.calls.tab import AnswerCollector, AnswerSink, CallSpan, CallTracer, Tab
from tollkeeper.core.activity import ActivityRecord, RecordColumns
from tollkeeper.core.inference import Batch
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.pricing import Bounds
from tollkeeper.core.runtime.request_log import RequestLog
from tollkeeper.core.runtime.tallies import collect_while_alive, schedule_write
from tollkeeper.core.usage import Usage
from tollkeeper.money.holds.values import Hold
from tollkeeper.policies.checks import Evidence
from tollkeeper.reports import call_metrics as metrics
from tollkeeper.reports.activity.service import Activity

# Small enough not to block the event loop for long.
_BUFFERED_MAX = 64
# Ended calls that wait for their last verdicts. Beyond this, they're recorded without them.
_WAITING_MAX = 1024
# Longer than the stopping process waits for the verdicts themselves.
_DRAIN_TIMEOUT_S = 5.0
_IMPOSSIBLE_USAGE = "The backend reported usage that cannot be true; the calls stay unsettled."
_EXCESSIVE_USAGE = "The backend reported more usage than the model's declared context holds."

_log = structlog.get_logger("tollkeeper.calls")

# An activity record's values in the tab of a call, in the record's order, but with clock times
# instead of durations, and the call's start at the end.
_FIELDS = (
    *("call.request_id", "call.organization_id", "call.project_id", "call.key_id"),
    *("operation", "call.model.id", "call.streamed", "started_ns", "ended_at"),
    *("first_piece_at", "status", "error_code", "meter.finish", "charged.estimated"),
    *("hold_picousd", "cost_picousd", "state", "backend", "replica", "call.model.backend"),
    *("charged.prompt_tokens", "charged.completion_tokens"),
    *("charged.cached_tokens", "charged.reasoning_tokens"),
    *("charged.cache_write_tokens", "charged.cache_write_1h_tokens"),
    *("charged.web_searches", "charged.input_audio_tokens"),
    *("charged.output_audio_tokens", "charged.service_tier"),
    *("verdicts", "meter.reported", "meter.report.cost_picousd"),
    *("dispatched_at", "answered_at", "judging_ns", "error_param", "error_message"),
    "started_at",
)
_read_tab = attrgetter(*_FIELDS)
_VERDICTS_AT = _FIELDS.index("verdicts")


def _columns(rows: Sequence[tuple[Any, ...]]) -> RecordColumns:
    """Rows are from `_read_tab`. Computes each duration for all calls at once, in C."""
    *columns, started_at = zip(*rows, strict=True)
    record: dict[str, Sequence[Any]] = dict(
        zip(ActivityRecord.__struct_fields__, columns, strict=False)
    )
    first_piece_at, dispatched_at = record["first_piece_us"], record["dispatched_us"]
    durations_us = _microseconds(started_at, record["duration_us"])
    upstream_us = _microseconds(dispatched_at, record["upstream_us"])
    judging_us = map(floordiv, record["overhead_us"], repeat(1000))
    overheads_us = map(sub, map(sub, durations_us, upstream_us), judging_us)
    record["started_at_ms"] = list(map(floordiv, record["started_at_ms"], repeat(1_000_000)))
    record["duration_us"] = durations_us
    record["first_piece_us"] = _known(first_piece_at, _microseconds(started_at, first_piece_at))
    record["dispatched_us"] = _known(dispatched_at, _microseconds(started_at, dispatched_at))
    record["upstream_us"] = _known(dispatched_at, upstream_us)
    record["overhead_us"] = _known(dispatched_at, map(max, overheads_us, repeat(0)))
    return record


def _columns_of_records(records: Sequence[ActivityRecord]) -> RecordColumns:
    fields = ActivityRecord.__struct_fields__
    return dict(zip(fields, zip(*map(astuple, records), strict=True), strict=True))


def _records(columns: RecordColumns) -> list[ActivityRecord]:
    return list(map(ActivityRecord, *columns.values()))


def _microseconds(starts_ns: Iterable[int], ends_ns: Iterable[int]) -> list[int]:
    return list(map(floordiv, map(sub, ends_ns, starts_ns), repeat(1000)))


def _known(times: Iterable[int], durations: Iterable[int]) -> list[int | None]:
    """None where the time is 0, which means not reached."""
    return list(map(getitem, zip(repeat(None), durations, strict=False), map(bool, times)))


class _CollectingSink:
    """Copies an answer to the call's span. Text that a policy holds back doesn't get here, so it's
    not traced."""

    def __init__(self, sink: AnswerSink, answer: AnswerCollector) -> None:
        self._sink = sink
        self._answer = answer

    async def take(self, batch: Batch) -> None:
        await self._sink.take(batch)
        self._answer.add(batch)

    def held_back(self) -> None:
        self._sink.held_back()

    def text_writer(self) -> None:
        """None: the span needs all text as events."""


class CallRecorder:
    def __init__(
        self,
        activity: Activity,
        log: RequestLog,
        on_misreport: Callable[[str, str], None],
        tracer: CallTracer | None = None,
    ) -> None:
        """`on_misreport` gets the backend and why its usage report can't be right."""
        self._activity = activity
        self._on_misreport = on_misreport
        self.tracer = tracer
        self._log = log
        # Rows of `_read_tab`.
        self._ended: list[tuple[Any, ...]] = []
        # Refused before they became calls.
        self._refused: list[ActivityRecord] = []
        self._waiting: set[asyncio.Task[None]] = set()
        collect_while_alive(self.flush)

    def started(self, tab: Tab) -> None:
        """Only if calls are traced."""
        assert self.tracer is not None
        tab.span = self.tracer.started(tab.call)
        tab.call = replace(tab.call, outgoing_trace=tab.span.traceparent)
        if tab.span.answer is not None:
            tab.sink = _CollectingSink(tab.sink, tab.span.answer)

    def ended(self, tab: Tab) -> None:
        """Records the call once its pending verdicts have arrived. Neither blocks nor raises."""
        if tab.hold is not None:
            self._check_usage_and_cost(tab, tab.hold)
        evidence = tab.evidence
        if evidence is not None:
            if evidence.pending and len(self._waiting) < _WAITING_MAX:
                # Only the values are kept, so prompt and answer are freed.
                later = self._record_later(_read_tab(tab), tab.span, evidence)
                task = asyncio.create_task(later)
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
                return
            tab.verdicts = evidence.verdicts
        self._record(_read_tab(tab), tab.span)

    def _check_usage_and_cost(self, tab: Tab, hold: Hold) -> None:
        usage, bounds = tab.charge, hold.bounds
        if usage is None or usage.estimated:
            # The call isn't charged for what the backend reported.
            usage = tab.meter.usage
        if usage is None:
            if tab.meter.reported_impossible_usage:
                metrics.count_impossible_usage(tab.backend_name)
                self._on_misreport(tab.backend_name, _IMPOSSIBLE_USAGE)
        elif (
            usage.prompt_tokens > bounds.prompt_tokens
            or usage.completion_tokens > bounds.choices * bounds.output_tokens_each
        ):
            if usage.prompt_tokens > bounds.prompt_tokens:
                metrics.count_usage_above_bound(tab.backend_name, "prompt")
            if usage.completion_tokens > bounds.choices * bounds.output_tokens_each:
                metrics.count_usage_above_bound(tab.backend_name, "output")
            if _exceeds_context(usage, bounds, tab.call.model.context_length):
                # Charged, although it contradicts the model's declared context length.
                metrics.count_excessive_usage(tab.backend_name)
                self._on_misreport(tab.backend_name, _EXCESSIVE_USAGE)
        cost, reported_cost = tab.cost_picousd, tab.meter.report.cost_picousd
        if cost is None:
            return
        if cost > hold.hold_picousd:
            _report_overage(tab, hold.hold_picousd, cost)
        if reported_cost is not None:
            metrics.count_reported_cost(tab.backend_name, reported_cost, cost)

    async def drain(self) -> None:
        """Waits for calls with pending verdicts, at most `_DRAIN_TIMEOUT_S`."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_DRAIN_TIMEOUT_S)

    async def _record_later(
        self, row: tuple[Any, ...], span: CallSpan | None, evidence: Evidence
    ) -> None:
        await evidence.wait_until_complete()
        row = (*row[:_VERDICTS_AT], evidence.verdicts, *row[_VERDICTS_AT + 1 :])
        self._record(row, span)

    def _record(self, row: tuple[Any, ...], span: CallSpan | None) -> None:
        ended = self._ended
        if not ended:
            schedule_write()
        ended.append(row)
        if len(ended) >= _BUFFERED_MAX:
            self.flush()
        if span is not None:
            span.ended(*_records(_columns([row])))

    def refused(self, record: ActivityRecord) -> None:
        """Not in the metrics of calls, whose labels are models and backends that were asked."""
        if not self._refused:
            schedule_write()
        self._refused.append(record)
        if len(self._refused) >= _BUFFERED_MAX:
            self.flush()

    def flush(self) -> None:
        refused, self._refused = self._refused, []
        if refused:
            self._activity.record(*refused)
            self._log.calls_ended(_columns_of_records(refused))
        rows, self._ended = self._ended, []
        if rows:
            columns = _columns(rows)
            self._activity.record(*_records(columns))
            metrics.count_calls(columns)
            self._log.calls_ended(columns)


def _exceeds_context(usage: Usage, bounds: Bounds, context: int) -> bool:
    # The prompt may have been sent several times, and read again after each web search.
    prompt_max = max(context * bounds.prompts, bounds.prompt_tokens)
    return usage.prompt_tokens > prompt_max or usage.completion_tokens > context * bounds.choices


def _report_overage(tab: Tab, hold: int, cost: int) -> None:
    call, backend = tab.call, tab.backend_name
    metrics.count_overage(backend, cost - hold)
    _log.warning(
        "a call cost more than its hold",
        request_id=call.request_id,
        organization_id=str(call.organization_id),
        project_id=str(call.project_id),
        model=call.model.id,
        backend=backend,
        hold_usd=usd_from_picousd(hold),
        cost_usd=usd_from_picousd(cost),
        overage_usd=usd_from_picousd(cost - hold),
    )
