"""Runs work on large requests beside the event loop, so that other requests go on meanwhile.

One thread does all of it, and organizations take turns for it: the interpreter runs one thread at a
time, and with several of them the event loop would have a small share of it.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

from tollkeeper.domain.errors import Unavailable
from tollkeeper.fair_queue import FairSlots, QueueFull

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# A large call for several completions, which a backend makes one at a time, has this many of them in progress
# at once: each needs memory for its own request.
PARTS_AT_ONCE = 4
_WAIT_S = 30.0
_WAITING_MAX = 1000
_WAITING_OF_OWNER_MAX = 250

_thread = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
_turns = FairSlots(
    1, owner_max=1, waiting_max=_WAITING_MAX, waiting_owner_max=_WAITING_OF_OWNER_MAX
)


async def beside_the_loop(owner: Hashable, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """What `work` returns or raises. It must touch nothing that the event loop changes meanwhile.
    Raises Unavailable where too much is to be done before it."""
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
