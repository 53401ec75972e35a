"""Processes large requests, and large values in answers, in a separate thread, so that the event loop can
serve other requests at the same time.

There is only one such thread, because the Python interpreter runs one thread at a time: with several
threads, the event loop would get only a small share of the time. Organizations use the thread round-robin.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

import msgspec

from tollkeeper.domain.errors import Unavailable
from tollkeeper.runtime.fair_queue import FairSlots, QueueFull

T = TypeVar("T")
Value = TypeVar("Value", str, msgspec.Raw)
Ts = TypeVarTuple("Ts")

# If a large call asks for several completions and its backend creates one completion for each request, at
# most this many requests are in progress at the same time, because each of them needs memory.
LARGE_CALL_REQUESTS_MAX = 4
# A value in an answer with more bytes is large: reading it may take more than about two milliseconds.
_SMALL_BYTES_MAX = 16 << 10
# The maximum time for which a request waits for the thread.
_WAIT_S = 30.0
_WAITING_MAX = 1000
_WAITING_OF_OWNER_MAX = 250

_thread = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
_thread_slot = FairSlots(
    1, owner_max=1, waiting_max=_WAITING_MAX, waiting_owner_max=_WAITING_OF_OWNER_MAX
)


async def run_in_thread(owner: Hashable, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """Runs `work` in the thread, and returns its result or raises its exception. `work` must not use objects
    that the event loop may change at the same time. Raises Unavailable if too much work is waiting."""
    loop = asyncio.get_running_loop()
    try:
        await _thread_slot.acquire(owner, until=loop.time() + _WAIT_S)
    except (QueueFull, TimeoutError):
        raise Unavailable(
            "Too many large requests are in progress; try again.", retry_after_s=1
        ) from None
    try:
        return await loop.run_in_executor(_thread, work, *arguments)
    finally:
        _thread_slot.release(owner)


def is_large(value: msgspec.Raw | str) -> bool:
    """Tells whether log-probabilities, the URL of an image, or a text must be read in the thread."""
    return len(value) > _SMALL_BYTES_MAX


async def read_value(owner: Hashable, read: Callable[[Value], T], value: Value) -> T:
    """Returns the result of `read` for log-probabilities, the URL of an image, or a text. Reads a large
    value in the thread. If the caller is cancelled, the thread continues, so `read` must not change
    shared objects."""
    return await run_in_thread(owner, read, value) if is_large(value) else read(value)
