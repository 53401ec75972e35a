"""Processes large requests in a thread, so that the event loop serves other requests meanwhile.

There is only one thread, and organizations take turns: the interpreter runs one thread at a time,
so several of them would leave the event loop a small share.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

from tollkeeper.domain.errors import Unavailable
from tollkeeper.runtime.fair_queue import FairSlots, QueueFull

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# If a large call asks for several completions and the backend creates one at a time, this many are
# in progress at once, because each needs memory for its own request.
PARTS_AT_ONCE = 4
_WAIT_S = 30.0
_WAITING_MAX = 1000
_WAITING_OF_OWNER_MAX = 250

_thread = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
_turns = FairSlots(
    1, owner_max=1, waiting_max=_WAITING_MAX, waiting_owner_max=_WAITING_OF_OWNER_MAX
)


async def run_in_thread(owner: Hashable, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """Returns or raises the result of `work`, which must not use anything that the event loop
    changes meanwhile. Raises Unavailable if too much work is waiting."""
    loop = asyncio.get_running_loop()
    try:
        await _turns.acquire(owner, until=loop.time() + _WAIT_S)
    except (QueueFull, TimeoutError):
        raise Unavailable(
            "Too many large requests are in progress; try again.", retry_after_s=1
        ) from None
    try:
        return await loop.run_in_executor(_thread, work, *arguments)
    finally:
        _turns.release(owner)
