"""Processes large requests, and large values in answers, in a thread, so that the event loop can serve
others. Only one: the interpreter runs one thread at a time, so several would starve the event loop.
Organizations take turns."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

import msgspec

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.fair_queue import FairSlots, QueueFull

T = TypeVar("T")
Value = TypeVar("Value", str, msgspec.Raw)
Ts = TypeVarTuple("Ts")

# For a call whose completions are separate requests, each of which needs memory.
LARGE_CALL_REQUESTS_MAX = 4
# Reading more may take over two milliseconds.
_SMALL_BYTES_MAX = 16 << 10
# For the thread.
_WAIT_S = 30.0
_WAITING_MAX = 1000
_WAITING_OF_OWNER_MAX = 250

_thread = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
_thread_slot = FairSlots(
    1, owner_max=1, waiting_max=_WAITING_MAX, waiting_owner_max=_WAITING_OF_OWNER_MAX
)


async def run_in_thread(owner: Hashable, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """`work` mustn't use objects that the event loop may change meanwhile. Raises Unavailable if too much
    waits."""
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
    """For log-probabilities, an image's URL, or a text."""
    return len(value) > _SMALL_BYTES_MAX


async def read_value(owner: Hashable, read: Callable[[Value], T], value: Value) -> T:
    """A large value in the thread. If the caller is cancelled, the thread goes on, so `read` mustn't change
    shared objects."""
    return await run_in_thread(owner, read, value) if is_large(value) else read(value)
