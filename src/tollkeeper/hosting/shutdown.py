"""The end of a worker, step by step: each in its turn, each with a deadline of its own.

Calls end first, then their costs are written, and the heartbeat goes on for as long as there is
something to write: another process would take the holds for a dead one's. Only a process that holds
nothing, and whose heartbeat has stopped, signs off. One that cannot leaves its lease behind, and
recovery finds what it left.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import structlog

from tollkeeper.domain.errors import TollkeeperError

# Beyond the grace, for calls that were stopped and are being settled.
_LAST_CALLS_S = 8.0
# For requests that are not calls, after the calls have ended.
_LAST_REQUESTS_S = 5.0
# For the costs of the last calls, even where the grace is over.
_LAST_BOOKS_S = 5.0
# For the chores under way and the last write of what they gathered.
_LAST_CHORES_S = 5.0
_SIGN_OFF_S = 2.0
# For a step that keeps its own deadline, before it is believed to be stuck.
_SLACK_S = 1.0
_log = structlog.get_logger("tollkeeper.worker")


class Server(Protocol):
    def stop_accepting(self) -> None: ...
    async def drain(self, grace_s: float) -> None: ...


class Calls(Protocol):
    async def drain(self, grace_s: float) -> None: ...


class Books(Protocol):
    async def drain(self, deadline_s: float) -> bool:
        """True where everything is written and nothing is held."""
        ...


class Chores(Protocol):
    async def stop(self) -> None: ...


class Lease(Protocol):
    async def sign_off(self) -> None: ...


async def shut_down(
    server: Server, calls: Calls, books: Books, chores: Chores, lease: Lease, *, grace_s: float
) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + grace_s
    server.stop_accepting()
    # Calls end by themselves or, after the grace, with an error record; only then may the server
    # cancel what is left.
    await _within("calls", grace_s + _LAST_CALLS_S, calls.drain(grace_s))
    await _within("requests", _LAST_REQUESTS_S + _SLACK_S, server.drain(_LAST_REQUESTS_S))
    # A request that was on its way may have become a call meanwhile. None can come any more.
    await _within("calls", _LAST_CALLS_S, calls.drain(0))
    books_s = max(_LAST_BOOKS_S, ends_at - loop.time())
    written = await _within("books", books_s + _SLACK_S, books.drain(books_s))
    stopped = await _within("chores", _LAST_CHORES_S, chores.stop())
    if written and stopped:
        await _within("sign-off", _SIGN_OFF_S, lease.sign_off())
    else:
        _log.warning("this process does not sign off: recovery looks after it")


async def _within(step: str, seconds: float, ending: Awaitable[bool | None]) -> bool:
    """Whether it came to its end, by its own word where it has one. What does not must not keep
    the next step from its turn."""
    try:
        async with asyncio.timeout(seconds):
            return await ending is not False
    except TimeoutError:
        _log.warning("a step of the shutdown did not end in time", step=step, seconds=seconds)
    except TollkeeperError as exc:
        _log.warning("a step of the shutdown failed", step=step, reason=exc.message)
    return False
