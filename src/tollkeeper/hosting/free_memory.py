"""Gives memory back to the system that the C library keeps after a peak.

glibc gives back only what lies at the end of its heap. After many large buffers, such as those of
callers that do not read, the heap is mostly free and stays as large as it was at its peak, because a
few small blocks lie behind the free ones. `malloc_trim` gives back the free pages in between.
"""

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 10.0
# So much may be free and stay. Below this, trimming would only be followed by growing again.
FREE_BYTES_MAX = 32 << 20


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
    """The heap of the C library. Where that is not glibc, nothing is known and nothing is done."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _MallocInfo

    @property
    def is_known(self) -> bool:
        return self._info is not None and self._trim is not None

    def free_bytes(self) -> int:
        return int(self._info().fordblks) if self._info is not None else 0

    def trim(self) -> None:
        if self._trim is not None:
            self._trim(0)


class MemoryTrimmer:
    """Looks at the heap at an interval. While `is_busy`, nothing is trimmed: other threads that
    allocate wait for it, some milliseconds."""

    def __init__(self, is_busy: Callable[[], bool], heap: Heap | None = None) -> None:
        self._is_busy = is_busy
        self._heap = Heap() if heap is None else heap
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._heap.is_known:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.start()
        self.trim_if_large()

    def trim_if_large(self) -> bool:
        """Whether there was much to give back."""
        if self._is_busy() or self._heap.free_bytes() <= FREE_BYTES_MAX:
            return False
        self._heap.trim()
        return True
