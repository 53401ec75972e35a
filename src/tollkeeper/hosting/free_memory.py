"""Returns memory to the system that the C library keeps after a peak.

glibc returns only memory at the end of its heap. After many large buffers, for example of clients
that do not read, the heap is mostly free but stays at its peak size, because a few small blocks lie
behind the free ones. `malloc_trim` returns the free pages in between.

Blocks of bodies have their own pages, which return to the system when they are freed. After the
first one is freed, glibc would take the next ones from the heap, unless its threshold is set.
"""

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 10.0
# The amount that may stay free. Below this, the heap would soon grow again after trimming.
FREE_BYTES_MAX = 32 << 20
# A block of this size or more has its own pages.
_OWN_PAGES_BYTES = 128 << 10
_M_MMAP_THRESHOLD = -3


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class Heap:
    """Accesses the heap of the C library. Does nothing if that is not glibc."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        self._options = getattr(library, "mallopt", None)
        if self._info is not None:
            self._info.restype = _MallocInfo

    @property
    def is_known(self) -> bool:
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
    """Checks the heap at an interval. Does not trim while `is_busy`, because other threads that
    allocate would wait for some milliseconds."""

    def __init__(self, is_busy: Callable[[], bool], heap: Heap | None = None) -> None:
        self._is_busy = is_busy
        self._heap = Heap() if heap is None else heap
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._heap.is_known:
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
        """Trims the heap, and tells whether there was much to return."""
        if self._is_busy() or self._heap.free_bytes() <= FREE_BYTES_MAX:
            return False
        self._heap.trim()
        return True
