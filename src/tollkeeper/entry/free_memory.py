"""Returns free memory to the operating system after a peak.

glibc only returns what's free at the end of its heap, so a few small blocks there keep the heap at its peak,
after large buffers for clients that don't read say. `malloc_trim` also returns the pages before them.

Large blocks, such as bodies, live outside the heap and return when freed. But by default glibc raises their
minimum size with each one freed and then takes that size from the heap. A fixed minimum prevents this.
"""

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 10.0
# Up to this, trimming isn't worth it: the heap would soon grow again.
FREE_BYTES_MAX = 32 << 20
# Larger blocks get pages of their own, outside the heap.
_OWN_PAGES_BYTES = 128 << 10
# For `mallopt`.
_M_MMAP_THRESHOLD = -3


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2`, since glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class Heap:
    """Does nothing without glibc."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        self._options = getattr(library, "mallopt", None)
        if self._info is not None:
            self._info.restype = _MallocInfo

    @property
    def can_trim(self) -> bool:
        return self._info is not None and self._trim is not None

    def free_bytes(self) -> int:
        return int(self._info().fordblks) if self._info is not None else 0

    def keep_large_blocks_apart(self) -> None:
        if self._options is not None:
            self._options(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)

    def trim(self) -> None:
        if self._trim is not None:
            self._trim(0)


class MemoryTrimmer:
    """At an interval, if much is free. Not while `is_busy`: threads that allocate wait some milliseconds for
    it."""

    def __init__(self, is_busy: Callable[[], bool], heap: Heap | None = None) -> None:
        self._is_busy = is_busy
        self._heap = Heap() if heap is None else heap
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._heap.can_trim:
            self._heap.keep_large_blocks_apart()
            self._check_later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._check)

    def _check(self) -> None:
        self._check_later()
        self.trim_if_large()

    def trim_if_large(self) -> bool:
        if self._is_busy() or self._heap.free_bytes() <= FREE_BYTES_MAX:
            return False
        self._heap.trim()
        return True
