"""Shuts a worker down in steps, each with a deadline. First the calls end, then the ledger writes their
costs. Heartbeats go on until then: without them another process would take the worker for dead and mark its
holds unsettled. Last the worker signs off, which ends its lease, unless holds are open or heartbeats still
run: then the lease expires, and another process marks the rest."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import structlog

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.http.http_server import HttpServer

# After the grace period, to settle stopped calls.
_LAST_CALLS_S = 8.0
# After the calls, for other requests.
_LAST_REQUESTS_S = 5.0
# At least, even if the grace period is over.
_LAST_COSTS_S = 5.0
# For upkeep, such as heartbeats, to write its last data.
_LAST_UPKEEP_S = 5.0
_SIGN_OFF_S = 2.0
# `drain` of server and ledger limit themselves; a step is cancelled this much later.
_SLACK_S = 1.0
_log = structlog.get_logger("tollkeeper.entry.worker")


class Calls(Protocol):
    async def drain(self, grace_s: float) -> None: ...


class Ledger(Protocol):
    async def drain(self, deadline_s: float) -> bool:
        """Whether everything is written and no hold is open."""
        ...


class Upkeep(Protocol):
    async def stop(self) -> None: ...


class Lease(Protocol):
    async def sign_off(self) -> None: ...


def longest_shutdown_s(grace_s: float) -> float:
    """If every step needs its maximum."""
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
    # Normally or, after the grace period, with an error event. Only then does the server cancel requests.
    await _run_step("calls", grace_s + _LAST_CALLS_S, calls.drain(grace_s))
    await _run_step("requests", _LAST_REQUESTS_S + _SLACK_S, server.drain(_LAST_REQUESTS_S))
    # Again: a request that was arriving may have become a call. From here on none can arrive.
    await _run_step("calls", _LAST_CALLS_S, calls.drain(0))
    ledger_s = max(_LAST_COSTS_S, grace_ends_at - loop.time())
    ledger_is_written = await _run_step("ledger", ledger_s + _SLACK_S, ledger.drain(ledger_s))
    heartbeats_stopped = await _run_step("upkeep", _LAST_UPKEEP_S, upkeep.stop())
    if ledger_is_written and heartbeats_stopped:
        await _run_step("sign-off", _SIGN_OFF_S, lease.sign_off())
    else:
        _log.warning("this process does not sign off its lease: recovery will mark its holds")


async def _run_step(step: str, seconds: float, work: Awaitable[bool | None]) -> bool:
    """Logs instead of raising, so that the next step runs. True if it ended in time and didn't return
    False."""
    try:
        async with asyncio.timeout(seconds):
            return await work is not False
    except TimeoutError:
        _log.warning("a step of the shutdown did not end in time", step=step, seconds=seconds)
    except TollkeeperError as exc:
        _log.warning("a step of the shutdown failed", step=step, reason=exc.message)
    return False
