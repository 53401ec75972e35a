"""Rejects calls while this process is overloaded, but only calls of owners (organizations) that
already have their share of the active calls.

A call is active while the gateway admits or settles it, and inactive while it waits for its
backend or the judge (the model that answers policy questions). A process is overloaded if, for a
whole tenth of a second,

- every iteration of its event loop (called "turn" in names) is long,
- or no iteration is short and very many calls are active, so that they wait for each other,
- or too many ledger writes are waiting.

A single long iteration is not an overload, and neither are many calls that wait for their backends.

During an overload, the number of active calls is limited, and further calls are rejected at once,
before their body is read. A call of an owner with less than its share is not rejected. So a client
with a few calls is served despite another client's flood. During such a flood, the limit is lowered
further: every call takes several iterations, so the few calls are fast only if the iterations are
short. The limit is removed after about one second without a rejection.

`FairTurns` spreads the start of requests and the delivery of ledger results over several
iterations. A sample (one measured duration) includes all work that was waiting when the sample
began. So it measures how long one iteration would have taken with all this work.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Gauge

from tollkeeper.domain.errors import Unavailable
from tollkeeper.services.tallies import CounterTally

# If every event loop iteration of a window takes longer than this, the process is overloaded.
TURN_S_MAX = 0.025
# The number of ledger writes that may wait; this is the size of one batch. If more writes wait for
# a whole window, the database cannot keep up.
BACKLOG_MAX = 256
# The number of active calls that are allowed if no iteration of a window is short. With more active
# calls, each call waits a tenth of a second or longer for other calls.
CROWD_MAX = 256
# The time span (window) after which the process decides whether it is overloaded.
WINDOW_S = 0.1
# A window has at least this many samples. It lasts longer than `WINDOW_S` if the iterations are
# long.
_SAMPLES_MIN = 3
# The pause before the next sample. There is no pause after an iteration that took longer than this.
_SAMPLE_S = 0.01
# If a sample takes longer than `TURN_S_MAX` times this factor, it is reported before it ends.
_REPORTED_AFTER = 1.5
# The initial limit of active calls during an overload. With more calls, the calls would only wait
# for each other. `SLOW_DATABASE_LIMIT` applies if too many ledger writes wait or too many calls are
# active, although iterations are not too long. More calls then make the database's batches larger
# and thus more efficient, so the limit is increased while the process itself has little to do.
LIMIT = SLOW_DATABASE_LIMIT = 48
# The lowest limit in general. With fewer calls, the ledger's batches are so small that the
# throughput drops sharply.
LIMIT_MIN = 32
# The lowest limit if one owner floods the process while another owner has less than its share.
UNEVEN_LIMIT_MIN = 8
# The factors by which the limit is changed at the end of a window. `_RECOVERY_FACTOR` raises a
# lowered limit up to `LIMIT`. `_RAISING_FACTOR` raises it further, if calls wait for the database.
_LOWERING_FACTOR, _RAISING_FACTOR, _RECOVERY_FACTOR = 0.8, 1.2, 1.08
# Fractions of the maximum duration of an iteration. Below `_SHORT_TURN`, an iteration is short.
# Below `_ROOMY_TURN`, the process has room for more calls.
_SHORT_TURN, _ROOMY_TURN = 1 / 8, 1 / 2
# After this many successive windows without a rejection, the limit is removed. After this many
# successive windows that each had a short iteration, the limit is increased, because the calls wait
# for something other than this process. After this many windows without a call, sampling stops.
CALM_WINDOWS = 10
_RETRY_AFTER_S = 1

_REFUSED = CounterTally(
    "tollkeeper_overload_refusals", "Requests refused because the process was overloaded."
)
_LIMITED = Gauge(
    "tollkeeper_overloaded_workers",
    "Overloaded workers, which limit the number of their active calls.",
    multiprocess_mode="livesum",
)


@dataclass(slots=True, eq=False)
class OwnerCalls:
    """Counts the calls of one owner in this process."""

    owner: Hashable
    # The calls in progress, and those of them that wait for their backend or the judge.
    running: int = 0
    waiting: int = 0


class OverloadGate:
    """Decides which calls are accepted. Accepts every call until samples of the event loop show an
    overload."""

    def __init__(
        self, turn_s_max: float = TURN_S_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.turn_s_max = turn_s_max
        self._clock = clock
        # The maximum number of active calls; None if there is no overload.
        self._limit: float | None = None
        # The owners (organizations) that have running calls. `RunningCalls` adds and removes them. The
        # key is an integer, which hashes faster than a UUID.
        self.owners: dict[Hashable, OwnerCalls] = {}
        self._wake: Callable[[], None] | None = None
        # While there is a limit, the number of successive windows without a rejection. Otherwise
        # the number of successive windows without a call.
        self._calm_windows = 0
        # The number of successive windows that each had a short iteration.
        self._short_windows = 0
        # The current window: its start, the number of its samples, and the minimum of each measured
        # figure.
        self._window_began = 0.0
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_active = math.inf
        # Whether the next call must be passed to `require_room`: there is a limit, or no call has arrived
        # in this window.
        self.watches_arrivals = True
        # The owners whose calls arrived in this window while there was a limit, and the number of
        # rejections of each owner.
        self._asking_owners: set[Hashable] = set()
        self._refused: dict[Hashable, int] = {}
        self._begin_window()

    @property
    def limit(self) -> int | None:
        """Returns the maximum number of active calls; None if there is no overload."""
        return None if self._limit is None else int(self._limit)

    @property
    def active_calls(self) -> int:
        """Returns the number of running calls that wait neither for their backend nor for the judge."""
        return sum(calls.running - calls.waiting for calls in self.owners.values())

    @property
    def resting(self) -> bool:
        """Tells whether sampling can stop, because no call has arrived for a while."""
        return self._limit is None and self._calm_windows >= CALM_WINDOWS

    def call_when_needed(self, wake: Callable[[], None]) -> None:
        """Sets the function that `require_room` calls once, when the next call arrives."""
        self._wake, self.watches_arrivals = wake, True

    @property
    def is_full(self) -> bool:
        """Tells whether a call of an owner that already has its share would be rejected now."""
        return self._limit is not None and self.active_calls >= self._limit

    def require_room(self, owner: Hashable) -> None:
        """Raises Unavailable and counts the rejection if the limit of active calls is reached and
        this owner already has its share of them. Wakes the sampler if it rests."""
        if self._wake is not None:
            wake, self._wake = self._wake, None
            self._calm_windows = 0
            self._begin_window()
            wake()
        limit = self._limit
        self.watches_arrivals = limit is not None
        if limit is None:
            return
        self._asking_owners.add(owner)
        if self.active_calls < limit:
            return
        calls = self.owners.get(owner)
        if calls is None:
            return
        active_owners = sum(each.running > each.waiting for each in self.owners.values())
        if (calls.running - calls.waiting) * active_owners < limit:
            return
        self._refused[owner] = self._refused.get(owner, 0) + 1
        _REFUSED.add(())
        raise Unavailable("The gateway is overloaded; try again.", retry_after_s=_RETRY_AFTER_S)

    def sample(self, turn_s: float, backlog: int) -> None:
        """Records the duration of one event loop iteration, and the number of waiting ledger
        writes."""
        self._samples += 1
        self._shortest_turn_s = min(self._shortest_turn_s, turn_s)
        self._least_backlog = min(self._least_backlog, backlog)
        self._least_active = min(self._least_active, self.active_calls)
        if self._samples >= _SAMPLES_MIN and self._clock() - self._window_began >= WINDOW_S:
            self._decide()
            self._begin_window()

    def _begin_window(self) -> None:
        self._window_began = self._clock()
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_active = math.inf
        self.watches_arrivals = True
        self._asking_owners.clear()
        self._refused.clear()

    def _decide(self) -> None:
        if self._shortest_turn_s > self.turn_s_max:
            self._calm_windows = self._short_windows = 0
            self._lower_for_long_turns()
        elif self._least_backlog > BACKLOG_MAX or self._is_crowded:
            self._lower_for_crowd()
        elif self._limit is None:
            self._calm_windows = self._calm_windows + 1 if self.watches_arrivals else 0
        else:
            self._calm_windows = 0 if self._refused else self._calm_windows + 1
            self._short_windows = self._short_windows + 1 if self._had_short_turn else 0
            if self._calm_windows == CALM_WINDOWS:
                self._set_limit(None)
            elif self._is_uneven:
                # The limit is lowered even if iterations are short: fewer calls of the flooding
                # owner mean fewer ledger writes, for which the owner with few calls waits.
                self._limit = min(
                    self._limit, max(UNEVEN_LIMIT_MIN, _LOWERING_FACTOR * self._limit)
                )
            elif self._short_windows == CALM_WINDOWS:
                self._set_limit(_RAISING_FACTOR * self._limit)
            elif self._shortest_turn_s < _ROOMY_TURN * self.turn_s_max and self._limit < LIMIT:
                self._limit = min(LIMIT, _RECOVERY_FACTOR * self._limit)

    @property
    def _had_short_turn(self) -> bool:
        return self._shortest_turn_s < _SHORT_TURN * self.turn_s_max

    @property
    def _is_crowded(self) -> bool:
        """Tells whether so many calls are active that they wait for each other. If an iteration was
        short, the calls wait for a slow database instead."""
        return self._least_active > CROWD_MAX and not self._had_short_turn

    @property
    def _is_uneven(self) -> bool:
        """Tells whether one owner had most of the rejections in this window, while another owner
        had calls and no rejection. The limit is then lowered, so that the flood of the first owner
        hardly delays the other owner. One owner must have most of the rejections, because if many
        owners send too many calls, some owner may have no rejection in a window by chance."""
        refused = self._refused
        if not refused or len(refused) == len(self._asking_owners):
            return False
        return 2 * max(refused.values()) > sum(refused.values())

    def _lower_for_crowd(self) -> None:
        """Lowers the limit, because too many ledger writes wait or too many calls are active."""
        if self._limit is None:
            self._set_limit(SLOW_DATABASE_LIMIT)
        elif self.active_calls <= self._limit:
            # A limit below `SLOW_DATABASE_LIMIT` stays: it was set while the process itself was the
            # bottleneck.
            self._set_limit(
                min(self._limit, max(SLOW_DATABASE_LIMIT, _LOWERING_FACTOR * self._limit))
            )

    def _lower_for_long_turns(self) -> None:
        if self._limit is None or self._limit > LIMIT:
            self._set_limit(LIMIT)
        elif self.active_calls <= self._limit:
            # The number of active calls has fallen to the limit, and the iterations are still too
            # long.
            self._set_limit(min(self._limit, max(LIMIT_MIN, _LOWERING_FACTOR * self._limit)))

    def _set_limit(self, limit: float | None) -> None:
        self._limit = limit
        self._calm_windows = self._short_windows = 0
        _LIMITED.set(0 if limit is None else 1)


class LoopSampler:
    """Measures iterations of the running event loop for an `OverloadGate`. Pauses while no calls
    arrive.

    `call_after_waiting` calls its argument after all work that was waiting at that time has run. So
    this work is measured as part of the iteration.
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
        # Changes when a sample starts and when it ends, so that `_end` recognises a sample that has
        # already ended.
        self._number = 0

    def start(self) -> None:
        self._gate.call_when_needed(self._begin)

    def _begin(self) -> None:
        """Starts a sample. The callback that it schedules ends the sample when the work that waits
        now has run, at the earliest in the next iteration."""
        # Not `loop.time()`: the clock of uvloop does not advance during an iteration.
        self._began = time.perf_counter()
        self._number += 1
        end = partial(self._end, self._number)
        self._call_after_waiting(end)
        # A long sample is reported before its end, so that an overload is detected while it lasts.
        self._early_report = self._loop.call_later(_REPORTED_AFTER * self._gate.turn_s_max, end)

    def _end(self, number: int) -> None:
        if number != self._number:
            return  # This sample has already been reported.
        self._number += 1
        self._early_report.cancel()
        turn_s = time.perf_counter() - self._began
        self._gate.sample(turn_s, self._backlog())
        if self._gate.resting:
            self._gate.call_when_needed(self._begin)
        elif turn_s < _SAMPLE_S:
            self._loop.call_later(_SAMPLE_S, self._begin)
        else:
            self._begin()
