"""Refuses calls while this process has more to do than it can: the largest consumer's first.

A call is in the gateway's hands while it is admitted or settled, and not while it waits for its
backend or for the judge. A process is overloaded where, for a tenth of a second on end,

- every turn of its event loop takes long,
- or no turn is short and very many calls are in its hands: they wait for each other,
- or writes of the ledger pile up.

A single long turn is none, and neither are many calls that wait for their backends.

Then the number of calls in the gateway's hands is limited, and what comes beyond is refused at once,
before its body is read. An owner that has less than its share of them is not refused: who comes with
a few calls beside another one's flood is served. While there is such an owner, the limit falls until
the turns are short, because every call waits for several turns. The limit is forgotten when nobody
has been refused for a second.

Requests begin and results of the ledger are handed out over several turns (`tollkeeper.fair_turns`).
Those that wait count as part of the turn: it would have been that long if all of them had gone on at
once.
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

# If every turn of the event loop takes longer, the process is overloaded.
TURN_S_MAX = 0.025
# The writes of the ledger that may wait: more than one batch of them is a queue that stays.
BACKLOG_MAX = 256
# The calls that may be in hand while no turn is short: more wait for a tenth of a second and longer.
CROWD_MAX = 256
WINDOW_S = 0.1
# A window has at least so many samples, however long the turns of the loop are.
_SAMPLES_MIN = 3
_SAMPLE_S = 0.01
# A turn that takes so many times the longest that may be is a sample before it ends.
_TOLD_AFTER = 1.5
# How many calls an overloaded process has in its hands at first. More only wait for each other. Where
# the database is what is slow, more make its batches larger, so the limit is raised from there while
# the process has little to do.
LIMIT = SLOW_DATABASE_LIMIT = 48
# With fewer, the batches of the ledger are so small that much less is served.
LIMIT_MIN = 32
# As far as the limit is lowered for owners that ask for less than their share.
UNEVEN_LIMIT_MIN = 8
# By how much the limit changes at the end of a window.
_LOWERED, _RAISED, _RECOVERED = 0.8, 1.2, 1.08
# A turn that is this part of the longest that may be is short, and one that has room for more calls.
_SHORT_TURN, _ROOMY_TURN = 1 / 8, 1 / 2
# Windows without a refusal after which the overload is over, with short turns after which the limit
# is raised, because the calls wait for something else than this process, or without a call after
# which nothing is sampled.
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
    """Decides by samples which calls are taken. Without samples it takes every call."""

    def __init__(
        self, turn_s_max: float = TURN_S_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.turn_s_max = turn_s_max
        self._clock = clock
        # How many calls may be in the gateway's hands; None where there is no overload.
        self._limit: float | None = None
        self._in_hand = 0
        self._in_hand_of: dict[Hashable, int] = {}
        self._wake: Callable[[], None] | None = None
        # Windows on end without a refusal or, where there is no limit, without a call.
        self._calm = 0
        # Windows on end with short turns.
        self._easy = 0
        # Figures of the present window: its start, samples, and the least of each.
        self._since = 0.0
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_in_hand = math.inf
        # Whether any call asked for room in this window.
        self._asked = False
        # The owners that asked in this window under a limit, and how often each was refused.
        self._askers: set[Hashable] = set()
        self._refused: dict[Hashable, int] = {}
        self._begin_window()

    @property
    def limit(self) -> int | None:
        """How many calls may be in the gateway's hands; None where there is no overload."""
        return None if self._limit is None else int(self._limit)

    @property
    def in_hand(self) -> int:
        return self._in_hand

    @property
    def resting(self) -> bool:
        """Whether nothing need be sampled, because nothing has been asked for a while."""
        return self._limit is None and self._calm >= CALM_WINDOWS

    def sampled_by(self, wake: Callable[[], None]) -> None:
        """`wake` is called when samples are needed again."""
        self._wake = wake

    @property
    def is_full(self) -> bool:
        """Whether an owner that has its share is refused now."""
        return self._limit is not None and self._in_hand >= self._limit

    def require_room(self, owner: Hashable) -> None:
        """Raises Unavailable, and counts the refusal, if the process is overloaded and this owner has its
        share."""
        self._asked = True
        if self._wake is not None:
            wake, self._wake = self._wake, None
            self._calm = 0
            self._begin_window()
            wake()
        limit = self._limit
        if limit is None:
            return
        self._askers.add(owner)
        if self._in_hand < limit:
            return
        own = self._in_hand_of.get(owner, 0)
        if own * len(self._in_hand_of) < limit:
            return
        self._refused[owner] = self._refused.get(owner, 0) + 1
        _REFUSED.add(())
        raise Unavailable("The gateway is overloaded; try again.", retry_after_s=_RETRY_AFTER_S)

    def take(self, owner: Hashable) -> None:
        """A call of this owner comes into the gateway's hands."""
        self._in_hand += 1
        self._in_hand_of[owner] = self._in_hand_of.get(owner, 0) + 1

    def pass_on(self, owner: Hashable) -> None:
        """A call has ended, or waits for somebody else."""
        self._in_hand -= 1
        left = self._in_hand_of[owner] - 1
        if left:
            self._in_hand_of[owner] = left
        else:
            del self._in_hand_of[owner]

    @contextmanager
    def waiting(self, owner: Hashable) -> Iterator[None]:
        """A call waits for somebody else within this block."""
        self.pass_on(owner)
        try:
            yield
        finally:
            self.take(owner)

    def sample(self, turn_s: float, backlog: int) -> None:
        """Takes the duration of one turn of the event loop, and how many writes wait."""
        self._samples += 1
        self._shortest_turn_s = min(self._shortest_turn_s, turn_s)
        self._least_backlog = min(self._least_backlog, backlog)
        self._least_in_hand = min(self._least_in_hand, self._in_hand)
        if self._samples >= _SAMPLES_MIN and self._clock() - self._since >= WINDOW_S:
            self._decide()
            self._begin_window()

    def _begin_window(self) -> None:
        self._since = self._clock()
        self._samples = 0
        self._shortest_turn_s = self._least_backlog = self._least_in_hand = math.inf
        self._asked = False
        self._askers.clear()
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
                # Also where the turns are short: the other one waits for the database as well.
                self._limit = min(self._limit, max(UNEVEN_LIMIT_MIN, _LOWERED * self._limit))
            elif self._easy == CALM_WINDOWS:
                self._set_limit(_RAISED * self._limit)
            elif self._shortest_turn_s < _ROOMY_TURN * self.turn_s_max and self._limit < LIMIT:
                self._limit = min(LIMIT, _RECOVERED * self._limit)

    @property
    def _had_short_turn(self) -> bool:
        return self._shortest_turn_s < _SHORT_TURN * self.turn_s_max

    @property
    def _is_crowded(self) -> bool:
        """Whether so many calls share the process that they wait for each other. With short turns in
        between they wait for a slow database."""
        return self._least_in_hand > CROWD_MAX and not self._had_short_turn

    @property
    def _is_uneven(self) -> bool:
        """Whether one owner has most of the refusals while another one asks for less than its share.
        The one then gets so few calls at once that the other hardly notices. Where many owners ask
        for too much, one of them is not refused in a window now and then, and that means nothing."""
        refused = self._refused
        if not refused or len(refused) == len(self._askers):
            return False
        return 2 * max(refused.values()) > sum(refused.values())

    def _lower_for_many(self) -> None:
        if self._limit is None:
            self._set_limit(SLOW_DATABASE_LIMIT)
        elif self._in_hand <= self._limit:
            # Where the process itself is what is slow, the limit is lower already.
            self._set_limit(min(self._limit, max(SLOW_DATABASE_LIMIT, _LOWERED * self._limit)))

    def _lower(self) -> None:
        if self._limit is None or self._limit > LIMIT:
            self._set_limit(LIMIT)
        elif self._in_hand <= self._limit:
            # The last change has had its effect, and it was not enough.
            self._set_limit(min(self._limit, max(LIMIT_MIN, _LOWERED * self._limit)))

    def _set_limit(self, limit: float | None) -> None:
        self._limit = limit
        self._calm = self._easy = 0
        _LIMITED.set(0 if limit is None else 1)


class LoopSampler:
    """Samples the running event loop for a gate, while there is something to sample.

    `call_after_waiting` calls back when what waits for its turn now has had it: it belongs to the
    turn of the loop, in which all of it would have gone on at once.
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
        # The number of the present sample.
        self._number = 0

    def start(self) -> None:
        self._gate.sampled_by(self._begin)

    def _begin(self) -> None:
        """One turn of the loop lies between this and what it calls soon."""
        # The loop's own clock stands still during a turn.
        self._began = time.perf_counter()
        self._number += 1
        end = partial(self._end, self._number)
        self._call_after_waiting(end)
        # It is long enough to be told then, and the overload must be found while it lasts.
        self._too_long = self._loop.call_later(_TOLD_AFTER * self._gate.turn_s_max, end)

    def _end(self, number: int) -> None:
        if number != self._number:
            return  # It has been told before its end.
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
