"""Returns free memory to the operating system after a peak.

By itself, glibc returns only free memory at the end of its heap. After a peak of large buffers, for
example for clients that do not read, most of the heap is free. But the heap stays at its peak size if
a few small blocks at its end are in use. `malloc_trim` also returns the free pages before such blocks.

Large blocks, such as request bodies, are allocated outside the heap and return to the operating system
when they are freed. By default, glibc raises the minimum size of such blocks when a block is freed, and
then allocates further blocks of that size in the heap. A fixed minimum size prevents this.
"""

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 10.0
# The heap is not trimmed while at most this much of it is free, because it would soon grow again.
FREE_BYTES_MAX = 32 << 20
# A block of at least this size is allocated outside the heap, in its own pages.
_OWN_PAGES_BYTES = 128 << 10
# The number of the `mallopt` option for this size.
_M_MMAP_THRESHOLD = -3


class _MallocInfo(ctypes.Structure):
    """Declares the fields of `struct mallinfo2`, which glibc has since version 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class Heap:
    """Accesses the heap of the C library. Does nothing if the C library is not glibc."""

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
    """Trims the heap at an interval if much of it is free. Does not trim while `is_busy` returns True,
    because threads that allocate memory have to wait some milliseconds for the end of trimming."""

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
        """Trims the heap if much of it is free and the process is not busy. Returns True if it did."""
        if self._is_busy() or self._heap.free_bytes() <= FREE_BYTES_MAX:
            return False
        self._heap.trim()
        return True
