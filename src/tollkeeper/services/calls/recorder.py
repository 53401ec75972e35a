"""Buffers the records of ended calls, and passes them in groups to the activity table, the metrics
and the request log."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch
from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.bill_checks import check_usage_and_cost
from tollkeeper.services.calls.metrics import count_calls
from tollkeeper.services.calls.tab import AnswerSink, Tab
from tollkeeper.services.calls.tracing import AnswerCollector, CallTracer
from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.tallies import collect_while_alive, schedule_write

# The maximum number of buffered records. It is small enough to process the records without blocking
# the event loop for long. Each periodic write of the metrics also passes the buffered records on.
_BUFFERED_MAX = 64
# The maximum number of ended calls that wait for their last policy verdicts (results). If more calls
# end, they are recorded without these verdicts.
_WAITING_MAX = 1024
# The time for which a stopping process waits until calls with pending verdicts are recorded. It is
# longer than the time for which the process waits for the verdicts themselves.
_DRAIN_TIMEOUT_S = 5.0


class _CollectingSink:
    """Passes an answer to the client's sink, and a copy to the tracing span of the call. Text that
    a policy holds back does not reach this sink, so it is not traced."""

    def __init__(self, sink: AnswerSink, answer: AnswerCollector) -> None:
        self._sink = sink
        self._answer = answer

    async def take(self, batch: Batch) -> None:
        await self._sink.take(batch)
        self._answer.add(batch)

    def held_back(self) -> None:
        self._sink.held_back()

    def text_writer(self) -> None:
        """Returns None, so that text is not written directly to the client: the span needs all text
        as events."""


class CallRecorder:
    def __init__(
        self,
        activity: Activity,
        log: RequestLog,
        on_misreport: Callable[[str, str], None],
        tracer: CallTracer | None = None,
    ) -> None:
        """Calls `on_misreport` with the name of a backend and the reason if the backend has sent a
        usage report that cannot be true or exceeds the model's context."""
        self._activity = activity
        self._on_misreport = on_misreport
        self.tracer = tracer
        self._log = log
        self._ended: list[ActivityRecord] = []
        self._waiting: set[asyncio.Task[None]] = set()
        collect_while_alive(self.flush)
        activity.collect = self.flush

    def started(self, tab: Tab) -> None:
        self._log.calls.add(tab.call.request_id)
        if self.tracer is not None:
            tab.span = self.tracer.started(tab.call)
            tab.call = replace(tab.call, outgoing_trace=tab.span.traceparent)
            if tab.span.answer is not None:
                tab.sink = _CollectingSink(tab.sink, tab.span.answer)

    def ended(self, tab: Tab) -> None:
        """Records the ended call, after its pending verdicts have arrived. Neither blocks nor
        raises."""
        tab.end()
        check_usage_and_cost(tab, self._on_misreport)
        if not tab.evidence.pending or len(self._waiting) >= _WAITING_MAX:
            self._record(tab)
            return
        task = asyncio.create_task(self._record_later(tab))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def drain(self) -> None:
        """Waits until the calls with pending verdicts are recorded, at most `_DRAIN_TIMEOUT_S`
        seconds."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_DRAIN_TIMEOUT_S)

    async def _record_later(self, tab: Tab) -> None:
        await tab.evidence.wait_until_complete()
        self._record(tab)

    def _record(self, tab: Tab) -> None:
        record = tab.record()
        if not self._ended:
            schedule_write()
        self._ended.append(record)
        if len(self._ended) >= _BUFFERED_MAX:
            self.flush()
        if tab.span is not None:
            tab.span.ended(record)

    def flush(self) -> None:
        """Passes the buffered records to the activity table, the metrics and the request log."""
        ended, self._ended = self._ended, []
        if ended:
            self._activity.record(*ended)
            count_calls(ended)
            self._log.calls_ended(ended)
