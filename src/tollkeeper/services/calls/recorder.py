"""Hands the records of ended calls to the activity; waits for late verdicts off the path."""

import asyncio

from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.bill_checks import check_bill
from tollkeeper.services.calls.running import RunningCall

# Calls that wait for their last verdicts; beyond it they are recorded without them.
_WAITING_MAX = 1024
# Longer than verdicts may take when a process ends.
_DRAIN_TIMEOUT_S = 5.0


class CallRecorder:
    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._waiting: set[asyncio.Task[None]] = set()

    def ended(self, running: RunningCall, status: int, error_code: str | None) -> None:
        """Takes the call; neither blocks nor raises."""
        check_bill(running)
        if not running.evidence.pending or len(self._waiting) >= _WAITING_MAX:
            self._activity.record(running.record(status, error_code))
            return
        task = asyncio.create_task(self._record_later(running, status, error_code))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def drain(self) -> None:
        """Waits, for a bounded time, for calls whose verdicts are still to come."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_DRAIN_TIMEOUT_S)

    async def _record_later(
        self, running: RunningCall, status: int, error_code: str | None
    ) -> None:
        running.end()
        await running.evidence.wait_until_complete()
        self._activity.record(running.record(status, error_code))
