"""Renews an expiring value (a token or keys) in the background, one attempt at a time. With a valid
value, calls never wait. Without one, they wait for the running attempt until their deadline;
between attempts they fail at once. Pauses between failed attempts double, up to a maximum."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from tollkeeper.core.errors import DeadlineExceeded, Unavailable
from tollkeeper.core.runtime.timeouts import timeout, timeout_at
from tollkeeper.providers.identity.failure import IdentityFailure

_log = structlog.get_logger("tollkeeper.providers")
_Value = TypeVar("_Value")
# Thirty years.
_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class RenewalTimes:
    """In seconds."""

    # Renewed this long before it expires, or `ahead_share` of its lifetime before, whichever is
    # later.
    ahead_s: float = 300.0
    ahead_share: float = 0.2
    # Not used so late, because it could expire before the provider receives it.
    unused_s: float = 10.0
    attempt_s: float = 10.0
    # Between failed attempts.
    pause_s: float = 1.0
    # While the value is still valid.
    pause_s_max: float = 60.0
    # Without a valid value.
    pause_s_max_without: float = 10.0
    # After a success, or half of the lifetime if that's shorter. Otherwise a token service that
    # returns the same value until shortly before it expires would be asked too often.
    interval_s_min: float = 30.0


@dataclass(frozen=True, slots=True)
class Expiring(Generic[_Value]):
    """A token or keys."""

    value: _Value = field(repr=False)
    # None if it doesn't expire.
    lifetime_s: float | None
    # For a value that doesn't expire. None means never.
    recheck_s: float | None = None


class Renewed(Generic[_Value]):
    """Call `close` in the end."""

    def __init__(
        self,
        obtain: Callable[[float], Awaitable[Expiring[_Value]]],
        *,
        description: str,
        times: RenewalTimes = RenewalTimes(),  # noqa: B008 - frozen
    ) -> None:
        """Doesn't start the task. `obtain` gets a deadline (event loop's clock) and may raise
        IdentityFailure. `description` is the identity's, for the log."""
        self._obtain = obtain
        self._description = description
        self._times = times
        self._value: _Value | None = None
        self._previous: _Value | None = None
        # On the event loop's clock, like all below.
        self._usable_until = 0.0
        self._renewing: asyncio.Task[None] | None = None
        # Done when the running attempt ends; calls without a valid value wait for it.
        self._attempt: asyncio.Future[None] | None = None
        self._next_attempt_at = 0.0
        self._obtained_at = 0.0
        # Before the next attempt.
        self._skip_pause = asyncio.Event()
        self._closed = False

    @property
    def values(self) -> tuple[_Value, ...]:
        """Current and previous."""
        return tuple(value for value in (self._value, self._previous) if value is not None)

    def start(self) -> None:
        is_renewing = self._renewing is not None and not self._renewing.done()
        if not is_renewing and not self._closed:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def get(self, *, deadline: float) -> _Value:
        """Raises Unavailable and DeadlineExceeded with `charged` False: the call wasn't sent."""
        value = self._value
        now = asyncio.get_running_loop().time()
        if value is not None and now < self._usable_until:
            return value
        return await self._wait(deadline)

    def doubt(self) -> None:
        """The provider has rejected the value, perhaps revoked, so the next attempt starts at once.
        Not if it's so new that the token service would return it again, or no longer valid."""
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
            # Due but not begun: the task will use this future.
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
        """Returns the seconds until the next; None if there's none. Raises IdentityFailure."""
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
            # `from None`: the original may quote the token service's answer.
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
        # The next attempt starts before the value expires, unless less than `pause_s` is
        # left.
        longest_s = min(times.pause_s_max, valid_s) if valid_s > 0 else times.pause_s_max_without
        pause_s = min(max(longest_s, times.pause_s), times.pause_s * 2.0 ** min(failures - 1, 16))
        # Random, so that many processes that failed together don't retry together.
        return pause_s * random.uniform(0.8, 1.0)  # noqa: S311 - only spreads the load
