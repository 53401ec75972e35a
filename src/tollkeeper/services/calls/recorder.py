"""Buffers records of ended calls, and creates activity, metrics and log lines from many
together."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch
from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.bill_checks import check_bill
from tollkeeper.services.calls.metrics import count_calls
from tollkeeper.services.calls.tab import AnswerSink, Tab
from tollkeeper.services.calls.tracing import AnswerCollector, CallTracer
from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.tallies import collect_while_alive, schedule_write

# The maximum number of buffered records; few enough to process at once. The next write of metrics
# also passes them on.
_BUFFERED_MAX = 64
# The maximum number of calls that wait for their last verdicts; further ones are recorded without
# them.
_WAITING_MAX = 1024
# Longer than verdicts may take when a process ends.
_DRAIN_TIMEOUT_S = 5.0


class _CollectingSink:
    """Lets a span see the content that the client gets. Text that a policy holds back does not come
    here."""

    def __init__(self, sink: AnswerSink, answer: AnswerCollector) -> None:
        self._sink = sink
        self._answer = answer

    async def take(self, batch: Batch) -> None:
        await self._sink.take(batch)
        self._answer.add(batch)

    def held_back(self) -> None:
        self._sink.held_back()

    def text_writer(self) -> None:
        """Returns None, because the span collects text as events too."""


class CallRecorder:
    def __init__(
        self,
        activity: Activity,
        log: RequestLog,
        on_misreport: Callable[[str, str], None],
        tracer: CallTracer | None = None,
    ) -> None:
        """`on_misreport` is called with a backend whose usage report is inconsistent, and the
        reason."""
        self._activity = activity
        self._on_misreport = on_misreport
        self.tracer = tracer
        self._log = log
        self._ended: list[ActivityRecord] = []
        self._waiting: set[asyncio.Task[None]] = set()
        collect_while_alive(self.hand_on)
        activity.collect = self.hand_on

    def started(self, tab: Tab) -> None:
        self._log.call_started(tab.call.request_id)
        if self.tracer is not None:
            tab.span = self.tracer.started(tab.call)
            tab.call = replace(tab.call, outgoing_trace=tab.span.traceparent)
            if tab.span.answer is not None:
                tab.sink = _CollectingSink(tab.sink, tab.span.answer)

    def ended(self, tab: Tab, status: int, error_code: str | None) -> None:
        """Records the ended call; neither blocks nor raises."""
        tab.end(status, error_code)
        check_bill(tab, self._on_misreport)
        if not tab.evidence.pending or len(self._waiting) >= _WAITING_MAX:
            self._record(tab)
            return
        task = asyncio.create_task(self._record_later(tab))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def drain(self) -> None:
        """Waits for a limited time for calls with pending verdicts."""
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
            self.hand_on()
        if tab.span is not None:
            tab.span.ended(record)

    def hand_on(self) -> None:
        """Passes the buffered records to activity, metrics and log."""
        ended, self._ended = self._ended, []
        if ended:
            self._activity.record(*ended)
            count_calls(ended)
            self._log.calls_ended(ended)
