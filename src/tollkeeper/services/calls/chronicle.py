"""Writes calls' stories down when they have ended; waits for late verdicts off the path."""

import asyncio

from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.metrics import count_absurd_usage
from tollkeeper.services.calls.story import CallStory

# Stories that wait for their last verdicts; beyond it they are written without them.
_WAITING_MAX = 1024
# Longer than verdicts may take when a process ends.
_DRAIN_TIMEOUT_S = 5.0


class Chronicle:
    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._waiting: set[asyncio.Task[None]] = set()

    def ended(self, story: CallStory, status: int, error_code: str | None) -> None:
        """Takes the story; neither blocks nor raises."""
        if story.meter is not None and story.meter.absurd_reports:
            count_absurd_usage(story.call.model.backend, story.meter.absurd_reports)
        if not story.evidence.pending or len(self._waiting) >= _WAITING_MAX:
            self._activity.record(story.record(status, error_code))
            return
        task = asyncio.create_task(self._record_later(story, status, error_code))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def drain(self) -> None:
        """Waits, for a bounded time, for stories whose verdicts are still to come."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_DRAIN_TIMEOUT_S)

    async def _record_later(self, story: CallStory, status: int, error_code: str | None) -> None:
        story.end()
        await story.evidence.settled()
        self._activity.record(story.record(status, error_code))
