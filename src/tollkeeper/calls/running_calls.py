"""Limits this process's running calls, handles disconnects, and ends all calls when it stops."""

import asyncio
import contextlib
from collections.abc import Hashable
from dataclasses import dataclass
from time import perf_counter_ns

from tollkeeper.calls.plans import Plan
from tollkeeper.calls.tab import AnswerSink, Tab
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.inference import Call
from tollkeeper.core.metering import Meter
from tollkeeper.core.runtime.fair_queue import share
from tollkeeper.core.runtime.overload import OverloadGate, OwnerCalls
from tollkeeper.core.runtime.timeouts import Alarm


@dataclass(frozen=True, slots=True)
class InferenceLimits:
    # From the arrival of a call to the end of its answer.
    deadline_s: float
    # How long we go on reading after a disconnect, because usage comes at the end of an answer.
    drain_s: float
    # Per process. One organization may have seven eighths.
    calls_max: int
    # Enforcing policies judge a streamed answer again after this many. 0: once, at its end.
    segment_characters: int = 0
    # Judge while the backend answers. The answer to a denied request is then paid for and
    # discarded.
    judges_in_parallel: bool = False
    # Answers read at once for disconnected clients. One organization may have seven eighths.
    drains_max: int = 64
    # For answers read until the deadline, because their backend bills them whole. They take
    # minutes, so one organization may only have a quarter.
    long_drains_max: int = 64


class _Drains:
    """Limits the answers that are still read after their client has disconnected."""

    def __init__(self, places: int, places_of_owner: int) -> None:
        self._places = places
        self._places_of_owner = places_of_owner
        # With the call's owner.
        self.taken: dict[Tab, Hashable] = {}

    def take_place(self, tab: Tab) -> bool:
        owner = tab.owner_calls.owner
        taken_by_owner = sum(other == owner for other in self.taken.values())
        if len(self.taken) >= self._places or taken_by_owner >= self._places_of_owner:
            return False
        self.taken[tab] = owner
        return True

    def end(self, tab: Tab) -> None:
        self.taken.pop(tab, None)


class RunningCalls:
    def __init__(self, limits: InferenceLimits, overload: OverloadGate) -> None:
        self._limits = limits
        self._calls_of_owner_max = share(limits.calls_max)
        self._running: set[Tab] = set()
        self._owners = overload.owners
        self._drains = _Drains(limits.drains_max, share(limits.drains_max))
        self._long_drains = _Drains(limits.long_drains_max, -(-limits.long_drains_max // 4))
        self._none_running = asyncio.Event()
        # Each keeps its timer, so the next call can use both.
        self._free_alarms: list[Alarm] = []

    def __len__(self) -> int:
        return len(self._running)

    def serves_others(self, owner: Hashable) -> bool:
        return len(self._owners) > (owner in self._owners)

    def begin(self, call: Call, plan: Plan, sink: AnswerSink, operation: str) -> Tab:
        owner = call.organization_id.int
        limits = self._limits
        calls = self._owners.get(owner) or OwnerCalls(owner)
        if len(self._running) >= limits.calls_max or calls.running >= self._calls_of_owner_max:
            raise Unavailable("Too many calls are in progress; try again.", retry_after_s=1)
        if self._free_alarms:
            alarm = self._free_alarms.pop()
            alarm.serve()
        else:
            alarm = Alarm()
        deadline = alarm.now() + limits.deadline_s
        tab = Tab(call, plan, sink, operation, deadline, alarm, calls, Meter(call, 0))
        if not calls.running:
            self._owners[owner] = calls
        calls.running += 1
        self._running.add(tab)
        return tab

    def end(self, tab: Tab) -> None:
        calls = tab.owner_calls
        # So `end_by` leaves the alarm to the next call.
        tab.ended_at = perf_counter_ns()
        self._free_alarms.append(tab.alarm)
        self._running.remove(tab)
        calls.running -= 1
        if not calls.running:
            del self._owners[calls.owner]
            if not self._running:
                self._none_running.set()
        if tab.abandoned:
            self._drains.end(tab)
            self._long_drains.end(tab)

    def abandon(self, tab: Tab) -> None:
        """A call that isn't sent yet ends. Otherwise we read on for up to `drain_s`, because the
        call is charged and its usage comes at the end; or until its deadline, if the backend bills
        the whole answer anyway. If too many answers are read like that, the call ends now."""
        if tab.abandoned or tab not in self._running:
            return
        tab.abandoned = True
        if tab.waits_to_be_sent:
            tab.end_at_once()
            return
        end_by = asyncio.get_running_loop().time()
        if tab.is_billed_to_end and self._long_drains.take_place(tab):
            end_by = tab.deadline
        elif self._drains.take_place(tab):
            end_by += self._limits.drain_s
        tab.end_by(end_by)

    async def drain(self, grace_s: float) -> None:
        """After `grace_s`, stops the calls that are left and waits until they're settled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_ended()
        now = asyncio.get_running_loop().time()
        for tab in self._running:
            tab.stopped = True
            tab.end_by(now)
        await self._all_ended()
        for alarm in self._free_alarms:
            alarm.close()
        self._free_alarms.clear()

    async def _all_ended(self) -> None:
        while self._running:
            self._none_running.clear()
            await self._none_running.wait()
