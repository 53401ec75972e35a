"""Tests that free memory after a peak is returned to the operating system."""

from pathlib import Path

import pytest

from tollkeeper.entry import free_memory
from tollkeeper.entry.free_memory import FREE_BYTES_MAX, Heap, MemoryTrimmer

_PEAK_BYTES = 4 * FREE_BYTES_MAX
_PAGE = 4096
_BLOCK = 32 << 10


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _leave_a_peak() -> bytes:
    """Frees many blocks below a block that stays, so that glibc does not return them. Returns this block."""
    blocks = [bytes(_BLOCK) for _ in range(_PEAK_BYTES // _BLOCK)]
    stays = bytes(_BLOCK)
    blocks.clear()
    return stays


@pytest.fixture
def heap() -> Heap:
    found = Heap()
    if not found.can_trim:
        pytest.skip("the C library is not glibc")
    return found


def test_what_a_peak_has_left_is_given_back(heap: Heap) -> None:
    heap.trim()
    stays = _leave_a_peak()
    left = _resident_bytes()
    assert heap.free_bytes() > _PEAK_BYTES // 2
    assert MemoryTrimmer(lambda: False, heap).trim_if_large()
    assert _resident_bytes() < left - _PEAK_BYTES // 2
    assert stays


def test_a_busy_process_is_not_held_up(heap: Heap) -> None:
    stays = _leave_a_peak()
    assert not MemoryTrimmer(lambda: True, heap).trim_if_large()
    assert heap.free_bytes() > _PEAK_BYTES // 2
    assert stays
    heap.trim()


class _SmallHeap(Heap):
    """A heap that has no more free memory than allowed. It counts the calls of `trim`."""

    def __init__(self) -> None:
        super().__init__()
        self.trimmed = 0

    @property
    def can_trim(self) -> bool:
        return True

    def free_bytes(self) -> int:
        return FREE_BYTES_MAX

    def trim(self) -> None:
        self.trimmed += 1


async def test_little_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "INTERVAL_S", 0)
    heap = _SmallHeap()
    trimmer = MemoryTrimmer(lambda: False, heap)
    assert not trimmer.trim_if_large()
    assert heap.trimmed == 0
    trimmer.start()
    trimmer.stop()
