"""Rejects calls while this process is overloaded, but only of owners that already have their share
of the active calls.

A call is active while the gateway admits or settles it, and not while it waits for its backend or
the judge. A process is overloaded if, for a whole tenth of a second,

- every iteration of its event loop ("turn" in names) is long,
- or none is short and very many calls are active, so they wait for each other,
- or too many ledger writes are waiting.

A single long iteration is no overload, and neither are many calls that wait for backends.

In an overload, further calls are rejected at once, before their body is read. An owner with less
than its share isn't, so a client with a few calls is served despite another's flood. The limit then
falls further: every call takes several iterations, so those few calls are fast only if iterations
are short. About a second without a rejection removes it.

`FairTurns` spreads request starts and ledger results over several iterations. A sample includes all
work that was waiting when it began, so it measures how long one iteration would have taken with all
of it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Gauge

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.tallies import CounterTally

# If every iteration of a window takes longer, the process is overloaded.
TURN_S_MAX = 0.025
# One batch. If more ledger writes wait for a whole window, the database can't keep up.
BACKLOG_MAX = 256
# Active calls while no iteration is short. With more, each waits a tenth of a second or longer.
CROWD_MAX = 256
# How long a window is.
WINDOW_S = 0.1
# So long iterations make it longer.
_SAMPLES_MIN = 3
# Between samples, except after an iteration that took longer.
_SAMPLE_S = 0.01
# A sample that takes `TURN_S_MAX` times this is reported before it ends.
_REPORTED_AFTER = 1.5
# Active calls when an overload begins; more would only wait for each other. `SLOW_DATABASE_LIMIT`
# is for when iterations aren't too long. More calls then make the database's batches larger and
# more efficient, so it's raised while the process has little to do.
LIMIT = SLOW_DATABASE_LIMIT = 48
# With fewer calls, the ledger's batches are so small that throughput drops sharply.
LIMIT_MIN = 32
# If one owner floods the process while another has less than its share.
UNEVEN_LIMIT_MIN = 8
# At the end of a window. Raising goes beyond `LIMIT`, if calls wait for the database.
_LOWERING_FACTOR, _RAISING_FACTOR, _RECOVERY_FACTOR = 0.8, 1.2, 1.08
# Of the longest allowed: the first is short, and below the second there's room for more calls.
_SHORT_TURN, _ROOMY_TURN = 1 / 8, 1 / 2
# Successive windows. Without a rejection, they remove the limit. Each with a short iteration, they
# raise it, because the calls wait for something else. Without a call, they stop the sampling.
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
    """Of one owner in this process."""

    owner: Hashable
    # Those waiting for their backend or the judge are running too.
    running: int = 0
    waiting: int = 0


class OverloadGate:
    """Accepts every call until samples of the event loop show an overload."""

    def __init__(
        self, turn_s_max: float = TURN_S_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.turn_s_max = turn_s_max
        self._clock = clock
        # Of active calls; None if there's no overload.
        self._limit: float | None = None
        # Those with running calls, kept by `RunningCalls`. An integer hashes faster than a UUID.
        self.owners: dict[Hashable, OwnerCalls] = {}
        self._wake: Callable[[], None] | None = None
        # Successive windows without a rejection, or, while there's no limit, without a call.
        self._calm_windows = 0
        # Successive windows with a short iteration.
        self._short_windows = 0
        # The current window; of the measured figures, the minimum.
        self._window_began = 0.0
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_active = math.inf
        # For the next call: there's a limit, or no call has come in this window.
        self.watches_arrivals = True
        # In this window, while there's a limit.
        self._asking_owners: set[Hashable] = set()
        self._refused: dict[Hashable, int] = {}
        self._begin_window()

    @property
    def limit(self) -> int | None:
        """Of active calls; None if there's no overload."""
        return None if self._limit is None else int(self._limit)

    @property
    def active_calls(self) -> int:
        """They wait neither for their backend nor for the judge."""
        return sum(calls.running - calls.waiting for calls in self.owners.values())

    @property
    def resting(self) -> bool:
        """No call has come for a while, so sampling can stop."""
        return self._limit is None and self._calm_windows >= CALM_WINDOWS

    def call_when_needed(self, wake: Callable[[], None]) -> None:
        """`require_room` calls it once, when the next call comes."""
        self._wake, self.watches_arrivals = wake, True

    @property
    def is_full(self) -> bool:
        """For owners that already have their share."""
        return self._limit is not None and self.active_calls >= self._limit

    def require_room(self, owner: Hashable) -> None:
        """Raises Unavailable if there's no room and this owner has its share. Wakes a resting
        sampler."""
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
        """The duration of an iteration, and the ledger writes that wait."""
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
                # Even if iterations are short: the flooding owner's ledger writes delay the other
                # owner.
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
        """If an iteration was short, the calls wait for a slow database, not for each other."""
        return self._least_active > CROWD_MAX and not self._had_short_turn

    @property
    def _is_uneven(self) -> bool:
        """One owner had most of the rejections, another had calls and none. Lowering the limit then
        keeps the flood from delaying the other. "Most" matters: with many flooding owners, one may
        have no rejection in a window by chance."""
        refused = self._refused
        if not refused or len(refused) == len(self._asking_owners):
            return False
        return 2 * max(refused.values()) > sum(refused.values())

    def _lower_for_crowd(self) -> None:
        """Too many ledger writes wait or too many calls are active."""
        if self._limit is None:
            self._set_limit(SLOW_DATABASE_LIMIT)
        elif self.active_calls <= self._limit:
            # A lower limit stays: it was set while the process itself was the bottleneck.
            self._set_limit(
                min(self._limit, max(SLOW_DATABASE_LIMIT, _LOWERING_FACTOR * self._limit))
            )

    def _lower_for_long_turns(self) -> None:
        if self._limit is None or self._limit > LIMIT:
            self._set_limit(LIMIT)
        elif self.active_calls <= self._limit:
            # The active calls are down to the limit, and iterations are still too long.
            self._set_limit(min(self._limit, max(LIMIT_MIN, _LOWERING_FACTOR * self._limit)))

    def _set_limit(self, limit: float | None) -> None:
        self._limit = limit
        self._calm_windows = self._short_windows = 0
        _LIMITED.set(0 if limit is None else 1)


class LoopSampler:
    """Measures iterations of the running event loop for an `OverloadGate`, but not while no calls
    come. `call_after_waiting` calls its argument after everything that's waiting, which is measured
    too."""

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
        # Changes when a sample starts and ends, so `_end` knows one that has already ended.
        self._number = 0

    def start(self) -> None:
        self._gate.call_when_needed(self._begin)

    def _begin(self) -> None:
        """The sample ends when what waits now has run, at the earliest in the next iteration."""
        # Not `loop.time()`: uvloop's clock stands still during an iteration.
        self._began = time.perf_counter()
        self._number += 1
        end = partial(self._end, self._number)
        self._call_after_waiting(end)
        # Early, so an overload is detected while it lasts.
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
