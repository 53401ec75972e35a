"""Tests the recorder of ended calls."""

import asyncio
import weakref
from unittest.mock import Mock

from tests.support.backend_calls import make_call
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.recorder import CallRecorder
from tollkeeper.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.core.inference import Batch
from tollkeeper.core.runtime.overload import OverloadGate
from tollkeeper.core.runtime.request_log import RequestLog
from tollkeeper.policies.checks import Evidence
from tollkeeper.reports.activity.service import Activity


class _Sink:
    async def take(self, batch: Batch) -> None: ...

    def held_back(self) -> None: ...

    def text_writer(self) -> None: ...


async def test_a_call_that_waits_for_verdicts_keeps_no_answer_and_no_prompt() -> None:
    activity = Mock(spec=Activity)
    recorder = CallRecorder(activity, Mock(spec=RequestLog), Mock())
    calls = RunningCalls(InferenceLimits(60, 10, calls_max=1), OverloadGate(60))
    verdict_arrived = asyncio.Event()

    async def judge() -> None:
        await verdict_arrived.wait()

    evidence = Evidence()
    evidence.pending.add(asyncio.create_task(judge()))
    sink = _Sink()
    kept_sink = weakref.ref(sink)
    call = make_call()
    tab = calls.begin(call, Mock(spec=Plan), sink, "chat_create")
    tab.evidence = evidence
    calls.end(tab)
    recorder.ended(tab)
    # The sink stands for everything to which only the tab refers.
    del tab, sink
    assert kept_sink() is None
    recorder.flush()
    activity.record.assert_not_called()

    verdict_arrived.set()
    await recorder.drain()
    recorder.flush()
    (record,) = activity.record.call_args.args
    assert (record.request_id, record.verdicts) == (call.request_id, evidence.verdicts)
