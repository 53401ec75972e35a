"""Rejects calls while this process is overloaded, starting with the largest consumer.

A call is active while the gateway admits or settles it, and inactive while it waits for its backend
or the judge. A process is overloaded if, for a whole tenth of a second,

- every iteration of its event loop takes long,
- or no iteration is short and very many calls are active: they wait for each other,
- or ledger writes pile up.

A single long iteration is not an overload, and neither are many calls that wait for their backends.

During an overload, the number of active calls is limited, and further calls are rejected at once,
before their body is read. An owner with less than its share is not rejected: a client with a few
calls is served despite another client's flood. While there is such an owner, the limit falls until
the iterations are short, because every call takes several iterations. The limit ends after one
second without a rejection.

Requests start and ledger results are delivered over several iterations (`tollkeeper.runtime.fair_turns`).
The waiting ones count as part of the iteration: it would have been that long if all of them had run
at once.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import Gauge

from tollkeeper.domain.errors import Unavailable
from tollkeeper.services.tallies import CounterTally

# If every event loop iteration takes longer, the process is overloaded.
TURN_S_MAX = 0.025
# The number of ledger writes that may wait. More than one batch is a queue that does not shrink.
BACKLOG_MAX = 256
# The number of active calls allowed while no iteration is short. More calls wait for a tenth of a
# second or longer.
CROWD_MAX = 256
WINDOW_S = 0.1
# A window has at least this many samples, however long the iterations are.
_SAMPLES_MIN = 3
_SAMPLE_S = 0.01
# An iteration that exceeds the maximum by this factor becomes a sample before it ends.
_REPORTED_AFTER = 1.5
# The initial limit of active calls during an overload. More calls would only wait for each other.
# If the database is the bottleneck, more calls make its batches larger, so the limit is increased
# while the process has little to do.
LIMIT = SLOW_DATABASE_LIMIT = 48
# With fewer calls, the ledger's batches are so small that throughput drops sharply.
LIMIT_MIN = 32
# The minimum limit when it is lowered for owners with less than their share.
UNEVEN_LIMIT_MIN = 8
# The factors that change the limit at the end of a window.
_LOWERING_FACTOR, _RAISING_FACTOR, _RECOVERY_FACTOR = 0.8, 1.2, 1.08
# The fractions of the maximum below which an iteration is short, or has room for more calls.
_SHORT_TURN, _ROOMY_TURN = 1 / 8, 1 / 2
# The number of windows without a rejection that end the overload, with short iterations that
# increase the limit (the calls wait for something other than this process), or without a call that
# stop the sampling.
CALM_WINDOWS = 10
_RETRY_AFTER_S = 1

_REFUSED = CounterTally(
    "tollkeeper_overload_refusals", "Requests refused because the process was overloaded."
)
_LIMITED = Gauge(
    "tollkeeper_overloaded_workers",
    "Workers that limit the calls in their hands because they are overloaded.",
    multiprocess_mode="livesum",
)


class OverloadGate:
    """Decides by samples which calls are accepted. Accepts every call without samples."""

    def __init__(
        self, turn_s_max: float = TURN_S_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.turn_s_max = turn_s_max
        self._clock = clock
        # The maximum number of active calls; None without an overload.
        self._limit: float | None = None
        self._active = 0
        self._active_by_owner: dict[Hashable, int] = {}
        self._wake: Callable[[], None] | None = None
        # Successive windows without a rejection or, without a limit, without a call.
        self._calm = 0
        # Successive windows with short iterations.
        self._easy = 0
        # The current window: its start, samples, and the minimum of each figure.
        self._since = 0.0
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_active = math.inf
        # Whether a call arrived in this window.
        self._asked = False
        # The owners with calls in this window under a limit, and the number of rejections of each.
        self._asking_owners: set[Hashable] = set()
        self._refused: dict[Hashable, int] = {}
        self._begin_window()

    @property
    def limit(self) -> int | None:
        """Returns the maximum number of active calls; None without an overload."""
        return None if self._limit is None else int(self._limit)

    @property
    def active_calls(self) -> int:
        return self._active

    @property
    def resting(self) -> bool:
        """Tells whether sampling can stop, because no call has arrived for a while."""
        return self._limit is None and self._calm >= CALM_WINDOWS

    def sampled_by(self, wake: Callable[[], None]) -> None:
        """Sets the function to call when samples are needed again."""
        self._wake = wake

    @property
    def is_full(self) -> bool:
        """Tells whether an owner with its full share would be rejected now."""
        return self._limit is not None and self._active >= self._limit

    def require_room(self, owner: Hashable) -> None:
        """Raises Unavailable, and counts the rejection, if the process is overloaded and this owner
        has its share."""
        self._asked = True
        if self._wake is not None:
            wake, self._wake = self._wake, None
            self._calm = 0
            self._begin_window()
            wake()
        limit = self._limit
        if limit is None:
            return
        self._asking_owners.add(owner)
        if self._active < limit:
            return
        own = self._active_by_owner.get(owner, 0)
        if own * len(self._active_by_owner) < limit:
            return
        self._refused[owner] = self._refused.get(owner, 0) + 1
        _REFUSED.add(())
        raise Unavailable("The gateway is overloaded; try again.", retry_after_s=_RETRY_AFTER_S)

    def mark_active(self, owner: Hashable) -> None:
        """Counts a call as active."""
        self._active += 1
        self._active_by_owner[owner] = self._active_by_owner.get(owner, 0) + 1

    def mark_inactive(self, owner: Hashable) -> None:
        """Counts a call as inactive: it has ended, or waits for another system."""
        self._active -= 1
        left = self._active_by_owner[owner] - 1
        if left:
            self._active_by_owner[owner] = left
        else:
            del self._active_by_owner[owner]

    @contextmanager
    def waiting(self, owner: Hashable) -> Iterator[None]:
        """Counts a call as inactive within this block."""
        self.mark_inactive(owner)
        try:
            yield
        finally:
            self.mark_active(owner)

    def sample(self, turn_s: float, backlog: int) -> None:
        """Records the duration of one event loop iteration, and the number of waiting writes."""
        self._samples += 1
        self._shortest_turn_s = min(self._shortest_turn_s, turn_s)
        self._least_backlog = min(self._least_backlog, backlog)
        self._least_active = min(self._least_active, self._active)
        if self._samples >= _SAMPLES_MIN and self._clock() - self._since >= WINDOW_S:
            self._decide()
            self._begin_window()

    def _begin_window(self) -> None:
        self._since = self._clock()
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_active = math.inf
        self._asked = False
        self._asking_owners.clear()
        self._refused.clear()

    def _decide(self) -> None:
        if self._shortest_turn_s > self.turn_s_max:
            self._calm = self._easy = 0
            self._lower()
        elif self._least_backlog > BACKLOG_MAX or self._is_crowded:
            self._lower_for_many()
        elif self._limit is None:
            self._calm = 0 if self._asked else self._calm + 1
        else:
            self._calm = 0 if self._refused else self._calm + 1
            self._easy = self._easy + 1 if self._had_short_turn else 0
            if self._calm == CALM_WINDOWS:
                self._set_limit(None)
            elif self._is_uneven:
                # Also with short iterations, because the other owner waits for the database too.
                self._limit = min(
                    self._limit, max(UNEVEN_LIMIT_MIN, _LOWERING_FACTOR * self._limit)
                )
            elif self._easy == CALM_WINDOWS:
                self._set_limit(_RAISING_FACTOR * self._limit)
            elif self._shortest_turn_s < _ROOMY_TURN * self.turn_s_max and self._limit < LIMIT:
                self._limit = min(LIMIT, _RECOVERY_FACTOR * self._limit)

    @property
    def _had_short_turn(self) -> bool:
        return self._shortest_turn_s < _SHORT_TURN * self.turn_s_max

    @property
    def _is_crowded(self) -> bool:
        """Tells whether so many calls share the process that they wait for each other. With short
        iterations in between they wait for a slow database."""
        return self._least_active > CROWD_MAX and not self._had_short_turn

    @property
    def _is_uneven(self) -> bool:
        """Tells whether one owner has most of the rejections while another asks for less than its
        share. The first owner then gets so few concurrent calls that the other hardly notices. If
        many owners ask for too much, a window without a rejection of one of them means nothing."""
        refused = self._refused
        if not refused or len(refused) == len(self._asking_owners):
            return False
        return 2 * max(refused.values()) > sum(refused.values())

    def _lower_for_many(self) -> None:
        if self._limit is None:
            self._set_limit(SLOW_DATABASE_LIMIT)
        elif self._active <= self._limit:
            # If the process itself is the bottleneck, the limit is already lower.
            self._set_limit(
                min(self._limit, max(SLOW_DATABASE_LIMIT, _LOWERING_FACTOR * self._limit))
            )

    def _lower(self) -> None:
        if self._limit is None or self._limit > LIMIT:
            self._set_limit(LIMIT)
        elif self._active <= self._limit:
            # The last change has had its effect, and it was not enough.
            self._set_limit(min(self._limit, max(LIMIT_MIN, _LOWERING_FACTOR * self._limit)))

    def _set_limit(self, limit: float | None) -> None:
        self._limit = limit
        self._calm = self._easy = 0
        _LIMITED.set(0 if limit is None else 1)


class LoopSampler:
    """Samples the running event loop for a gate, while there is something to sample.

    `call_after_waiting` calls back when all currently waiting work has run: it belongs to the
    iteration in which it would have run at once.
    """

    def __init__(
        self,
        gate: OverloadGate,
        backlog: Callable[[], int],
        call_after_waiting: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._gate = gate
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._call_after_waiting = call_after_waiting or self._loop.call_soon
        self._began = 0.0
        # The number of the current sample.
        self._number = 0

    def start(self) -> None:
        self._gate.sampled_by(self._begin)

    def _begin(self) -> None:
        """Starts a sample; one iteration lies between this and the callback that it schedules."""
        # The loop's own clock does not advance during an iteration.
        self._began = time.perf_counter()
        self._number += 1
        end = partial(self._end, self._number)
        self._call_after_waiting(end)
        # An overload must be detected while it lasts, so a long iteration is reported before its
        # end.
        self._too_long = self._loop.call_later(_REPORTED_AFTER * self._gate.turn_s_max, end)

    def _end(self, number: int) -> None:
        if number != self._number:
            return  # The sample was reported before its end.
        self._number += 1
        self._too_long.cancel()
        turn_s = time.perf_counter() - self._began
        self._gate.sample(turn_s, self._backlog())
        if self._gate.resting:
            self._gate.sampled_by(self._begin)
        elif turn_s < _SAMPLE_S:
            self._loop.call_later(_SAMPLE_S, self._begin)
        else:
            self._begin()
