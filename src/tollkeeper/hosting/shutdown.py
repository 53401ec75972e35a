"""Shuts a worker down in a sequence of steps, each with its own deadline.

First the calls end, then the ledger writes their costs. A worker has a lease, which shows that the worker
lives, and renews the lease with heartbeats. The heartbeats continue until the ledger has written
everything. Without heartbeats, another process would consider the worker dead and mark its holds (the amounts
reserved for its calls) as unsettled (with an unknown cost). At the end the worker signs off, which ends
its lease. A worker with open holds or running heartbeats does not sign off. Its lease expires, and another
process marks the remaining holds as unsettled.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import structlog

from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.hosting.http_server import HttpServer

# The time, after the grace period, in which stopped calls are settled (charged).
_LAST_CALLS_S = 8.0
# The time, after the calls have ended, for other open requests.
_LAST_REQUESTS_S = 5.0
# The minimum time for writing the costs of the last calls, even if the grace period is over.
_LAST_COSTS_S = 5.0
# The time for background work (upkeep), such as heartbeats, to finish and to write its last data.
_LAST_UPKEEP_S = 5.0
_SIGN_OFF_S = 2.0
# The `drain` methods of the server and the ledger limit their own time. A step is cancelled if its `drain`
# exceeds this limit by `_SLACK_S`.
_SLACK_S = 1.0
_log = structlog.get_logger("tollkeeper.worker")


class Calls(Protocol):
    async def drain(self, grace_s: float) -> None: ...


class Ledger(Protocol):
    async def drain(self, deadline_s: float) -> bool:
        """Returns True if everything is written and no hold is open."""
        ...


class Upkeep(Protocol):
    async def stop(self) -> None: ...


class Lease(Protocol):
    async def sign_off(self) -> None: ...


def longest_shutdown_s(grace_s: float) -> float:
    """Returns the duration of `shut_down` if every step needs its maximum time."""
    requests_s = _LAST_REQUESTS_S + _SLACK_S
    costs_s = _LAST_COSTS_S + _SLACK_S
    calls_s = grace_s + 2 * _LAST_CALLS_S
    return calls_s + requests_s + costs_s + _LAST_UPKEEP_S + _SIGN_OFF_S


async def shut_down(
    server: HttpServer,
    calls: Calls,
    ledger: Ledger,
    upkeep: Upkeep,
    lease: Lease,
    *,
    grace_s: float,
) -> None:
    loop = asyncio.get_running_loop()
    grace_ends_at = loop.time() + grace_s
    server.stop_accepting()
    # Calls end normally or, after the grace period, with an error event to the client. Only then does
    # the server cancel open requests.
    await _run_step("calls", grace_s + _LAST_CALLS_S, calls.drain(grace_s))
    await _run_step("requests", _LAST_REQUESTS_S + _SLACK_S, server.drain(_LAST_REQUESTS_S))
    # Drains the calls again, because a request that was still arriving may have become a call. From now
    # on, no further request can arrive.
    await _run_step("calls", _LAST_CALLS_S, calls.drain(0))
    ledger_s = max(_LAST_COSTS_S, grace_ends_at - loop.time())
    ledger_is_written = await _run_step("ledger", ledger_s + _SLACK_S, ledger.drain(ledger_s))
    heartbeats_stopped = await _run_step("upkeep", _LAST_UPKEEP_S, upkeep.stop())
    if ledger_is_written and heartbeats_stopped:
        await _run_step("sign-off", _SIGN_OFF_S, lease.sign_off())
    else:
        _log.warning("this process does not sign off its lease: recovery will mark its holds")


async def _run_step(step: str, seconds: float, work: Awaitable[bool | None]) -> bool:
    """Runs one step. Logs a late or failed step instead of raising, so that the next step runs. Returns
    True if the step ended in time and did not return False."""
    try:
        async with asyncio.timeout(seconds):
            return await work is not False
    except TimeoutError:
        _log.warning("a step of the shutdown did not end in time", step=step, seconds=seconds)
    except TollkeeperError as exc:
        _log.warning("a step of the shutdown failed", step=step, reason=exc.message)
    return False
