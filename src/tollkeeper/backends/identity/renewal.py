"""Holds an expiring value (a token or keys), and renews it in the background before it expires, with
one attempt at a time.

While the current value is valid, a call never waits. Without a valid value, a call waits for the
attempt that is in progress, until the call's deadline. If no attempt is in progress, because the last
attempt failed and the next one has not begun, the call fails at once. Failed attempts are repeated
after pauses, each twice as long as the one before, up to a maximum.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.domain.errors import DeadlineExceeded, Unavailable
from tollkeeper.runtime.timeouts import timeout, timeout_at

_log = structlog.get_logger("tollkeeper.backends")
_Value = TypeVar("_Value")
# The lifetime of a value that does not expire: thirty years.
_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class RenewalTimes:
    """Contains the durations of a renewal, in seconds."""

    # A value is renewed `ahead_s` before it expires, or `ahead_share` of its lifetime before it
    # expires if that is later.
    ahead_s: float = 300.0
    ahead_share: float = 0.2
    # A value is not used in the last seconds of its lifetime, because it could expire before the
    # provider receives it.
    unused_s: float = 10.0
    # The timeout of one attempt.
    attempt_s: float = 10.0
    # The first pause between failed attempts.
    pause_s: float = 1.0
    # The longest pause while the current value is still valid.
    pause_s_max: float = 60.0
    # The longest pause while there is no valid value.
    pause_s_max_without: float = 10.0
    # The shortest time between a successful attempt and the next attempt, or half of the value's
    # lifetime if that is shorter. Without this minimum, a token service that returns the same value
    # until shortly before the value expires would be asked too often.
    interval_s_min: float = 30.0


@dataclass(frozen=True, slots=True)
class Expiring(Generic[_Value]):
    """Contains an obtained token or obtained keys, with their lifetime."""

    value: _Value = field(repr=False)
    # The number of seconds until the value expires. None if it does not expire.
    lifetime_s: float | None
    # The number of seconds after which a value that does not expire is obtained again. None means
    # never.
    recheck_s: float | None = None


class Renewed(Generic[_Value]):
    """Holds the current value, and the task that renews the value. The creator of the object has to
    call `close`."""

    def __init__(
        self,
        obtain: Callable[[float], Awaitable[Expiring[_Value]]],
        *,
        description: str,
        times: RenewalTimes = RenewalTimes(),  # noqa: B008 - frozen
    ) -> None:
        """Does not start the task yet. `obtain` is called with a deadline (a time of the event loop's
        clock) to obtain a value, and may raise IdentityFailure. `description` is a description of the
        identity for the log."""
        self._obtain = obtain
        self._description = description
        self._times = times
        self._value: _Value | None = None
        self._previous: _Value | None = None
        # All times below are times of the event loop's clock.
        self._usable_until = 0.0
        self._renewing: asyncio.Task[None] | None = None
        # A future that is done when the attempt in progress ends. Calls without a valid value wait
        # for this future.
        self._attempt: asyncio.Future[None] | None = None
        self._next_attempt_at = 0.0
        self._obtained_at = 0.0
        # Ends the pause before the next attempt.
        self._skip_pause = asyncio.Event()
        self._closed = False

    @property
    def values(self) -> tuple[_Value, ...]:
        """Returns the current and the previous value."""
        return tuple(value for value in (self._value, self._previous) if value is not None)

    def start(self) -> None:
        """Starts the task that renews the value, unless the task is already running."""
        is_renewing = self._renewing is not None and not self._renewing.done()
        if not is_renewing and not self._closed:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def get(self, *, deadline: float) -> _Value:
        """Returns a valid value. Raises Unavailable and DeadlineExceeded. Their attribute `charged`
        is False, because the call was not sent."""
        value = self._value
        now = asyncio.get_running_loop().time()
        if value is not None and now < self._usable_until:
            return value
        return await self._wait(deadline)

    def doubt(self) -> None:
        """Records that the provider has rejected the value. The value may have been revoked, so the
        next attempt starts at once. Nothing happens if the value is so new that the token service would
        probably return the same value, or if the value is no longer valid."""
        now = asyncio.get_running_loop().time()
        if now - self._obtained_at >= self._times.interval_s_min and now < self._usable_until:
            self._skip_pause.set()

    async def close(self) -> None:
        self._closed = True
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _wait(self, deadline: float) -> _Value:
        loop = asyncio.get_running_loop()
        self.start()
        if self._renewing is None:
            raise Unavailable("The backend is closed.")
        if self._attempt is None and loop.time() >= self._next_attempt_at:
            # An attempt is due, but the task has not begun it yet. The task will use this future.
            self._attempt = loop.create_future()
        if self._attempt is not None:
            try:
                with timeout_at(deadline):
                    await asyncio.shield(self._attempt)
            except TimeoutError:
                raise DeadlineExceeded from None
        value = self._value
        if value is None or loop.time() >= self._usable_until:
            wait_s = max(1, round(self._next_attempt_at - loop.time()))
            raise Unavailable(
                "The gateway's credential for the backend is not valid at present.",
                retry_after_s=wait_s,
            )
        return value

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                attempt = self._attempt = self._attempt or loop.create_future()
                try:
                    pause_s = await self._make_attempt()
                    failures = 0
                except IdentityFailure as failure:
                    failures += 1
                    pause_s = self._pause(failures)
                    _log.warning(
                        "credential not renewed",
                        identity=self._description,
                        reason=str(failure),
                        still_valid_s=max(0, round(self._usable_until - loop.time())),
                    )
                self._next_attempt_at = loop.time() + (pause_s or 0.0)
                self._attempt = None
                attempt.set_result(None)
                if pause_s is None:
                    # The value does not expire and is never obtained again.
                    self._next_attempt_at = float("inf")
                    return
                self._skip_pause.clear()
                with contextlib.suppress(TimeoutError), timeout(pause_s):
                    await self._skip_pause.wait()
        finally:
            open_attempt, self._attempt = self._attempt, None
            if open_attempt is not None:
                open_attempt.set_result(None)

    async def _make_attempt(self) -> float | None:
        """Obtains a value. Returns the number of seconds until the next attempt; None if no further
        attempt is needed. Raises IdentityFailure."""
        loop = asyncio.get_running_loop()
        times = self._times
        until = loop.time() + times.attempt_s
        began_at = loop.time()
        try:
            with timeout_at(until):
                obtained = await self._obtain(until)
        except TimeoutError:
            raise IdentityFailure(f"no answer within {times.attempt_s:g} s") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # `from None`, because the original error may quote the answer of the token service.
            raise IdentityFailure("the token service's answer cannot be read") from None
        self._obtained_at = loop.time()
        lifetime_s = obtained.lifetime_s
        if lifetime_s is not None and lifetime_s <= times.unused_s:
            raise IdentityFailure(
                "the token service gave a token that has expired or expires within seconds"
            )
        if obtained.value != self._value:
            self._previous, self._value = self._value, obtained.value
        if lifetime_s is None:
            self._usable_until = began_at + _FOREVER_S
            return obtained.recheck_s
        self._usable_until = began_at + lifetime_s - times.unused_s
        ahead_s = min(times.ahead_s, lifetime_s * times.ahead_share)
        due_in_s = lifetime_s - max(ahead_s, times.unused_s)
        return max(min(times.interval_s_min, lifetime_s / 2), due_in_s)

    def _pause(self, failures: int) -> float:
        times = self._times
        valid_s = self._usable_until - asyncio.get_running_loop().time()
        # While the current value is valid, the next attempt starts before the value expires, unless
        # less than `pause_s` is left.
        longest_s = min(times.pause_s_max, valid_s) if valid_s > 0 else times.pause_s_max_without
        pause_s = min(max(longest_s, times.pause_s), times.pause_s * 2.0 ** min(failures - 1, 16))
        # If the attempts of many processes fail at the same time, random pauses keep the processes from
        # retrying at the same time.
        return pause_s * random.uniform(0.8, 1.0)  # noqa: S311 - only spreads the load
