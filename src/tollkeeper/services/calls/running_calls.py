"""Tracks the calls in progress in this process: limits their number, handles disconnects, and ends
all of them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tollkeeper.domain.errors import Unavailable
from tollkeeper.domain.inference import Call
from tollkeeper.runtime.fair_queue import share
from tollkeeper.runtime.timeouts import Alarms
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.calls.tab import AnswerSink, Tab
from tollkeeper.services.overload import OverloadGate


@dataclass(frozen=True, slots=True)
class InferenceLimits:
    deadline_s: float
    # How long the rest of a disconnected client's answer is read for its usage.
    drain_s: float
    # The maximum number of calls in progress in this process; one organization may have seven
    # eighths of them.
    calls_max: int
    # Under enforcing response policies: judge whenever this many characters have arrived; 0 means
    # at the end.
    segment_characters: int = 0
    # Judge requests while the backend works. A denied answer is then paid for and discarded.
    judges_beside: bool = False
    # The maximum number of disconnected clients whose answers are read at once; one organization
    # may have seven eighths of them.
    drains_max: int = 64


class RunningCalls:
    def __init__(self, limits: InferenceLimits, overload: OverloadGate) -> None:
        self._limits = limits
        self._overload = overload
        self._running: set[Tab] = set()
        # By organization; an integer hashes faster than an id.
        self._running_of: dict[Hashable, int] = {}
        # Calls of disconnected clients whose answer is still read, and their number by
        # organization.
        self._draining: set[Tab] = set()
        self._draining_by_owner: Counter[int] = Counter()
        self._none_running = asyncio.Event()
        self._alarms = Alarms()

    def __len__(self) -> int:
        return len(self._running)

    def serves_others(self, owner: Hashable) -> bool:
        """Tells whether calls of another owner are in progress."""
        return len(self._running_of) > (owner in self._running_of)

    def begin(self, call: Call, plan: Plan, sink: AnswerSink, operation: str) -> Tab:
        """Registers the call, or rejects it before any work if this process has no room for it."""
        owner, limit = call.organization_id.int, self._limits.calls_max
        own = self._running_of.get(owner, 0)
        if len(self._running) >= limit or own >= share(limit):
            raise Unavailable("Too many calls are in progress; try again.", retry_after_s=1)
        deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
        tab = Tab(call, plan, sink, operation, deadline, self._alarms.take())
        self._running_of[owner] = own + 1
        self._running.add(tab)
        self._overload.take(owner)
        return tab

    def end(self, tab: Tab) -> None:
        """Removes a call that has ended and was recorded."""
        owner = tab.owner
        tab.detach_alarm()
        self._alarms.give_back(tab.alarm)
        self._running.discard(tab)
        self._overload.pass_on(owner)
        left = self._running_of[owner] - 1
        if left:
            self._running_of[owner] = left
        else:
            del self._running_of[owner]
        if tab in self._draining:
            self._draining.remove(tab)
            self._draining_by_owner -= Counter((owner,))
        if not self._running:
            self._none_running.set()

    def abandon(self, tab: Tab) -> None:
        """Handles a disconnect: the rest of the answer is read for a while, because it is paid for.
        One organization may have seven eighths of these calls. A call that was not sent yet is
        never sent."""
        if tab.abandoned or tab not in self._running:
            return
        tab.abandoned = True
        if tab.waits_to_be_sent:
            tab.end_at_once()
            return
        owner, limit, within_s = tab.owner, self._limits.drains_max, 0.0
        if len(self._draining) < limit and self._draining_by_owner[owner] < share(limit):
            within_s = self._limits.drain_s
            self._draining.add(tab)
            self._draining_by_owner[owner] += 1
        tab.end_by(asyncio.get_running_loop().time() + within_s)

    async def drain(self, grace_s: float) -> None:
        """Lets running calls end within the grace period, then stops them, so that they are
        settled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_ended()
        now = asyncio.get_running_loop().time()
        for tab in self._running:
            tab.stopped = True
            tab.end_by(now)
        await self._all_ended()
        self._alarms.close()

    async def _all_ended(self) -> None:
        while self._running:
            self._none_running.clear()
            await self._none_running.wait()
