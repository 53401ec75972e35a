"""What every target checks: work that grows with the input and not faster, and cuts that do not matter."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

# Calls that do not depend on the input's size.
_CALLS_SLACK = 400
_LENGTH_MIN = 16


def pieces(data: bytes, cut_by: bytes) -> list[bytes]:
    """The data, cut where the bytes of `cut_by` say."""
    found, start = [], 0
    for step in cut_by:
        end = start + step
        if end >= len(data):
            break
        found.append(data[start:end])
        start = end
    return [*found, data[start:]]


def assert_prefix(first: Sequence[object], second: Sequence[object]) -> None:
    """A cut may show earlier that something is wrong, and never changes what came before."""
    shorter, longer = sorted((first, second), key=len)
    assert list(longer[: len(shorter)]) == list(shorter)


def assert_linear(work: Callable[[bytes], object], data: bytes) -> None:
    """Four times the input makes at most about four times the calls, also of functions in C."""
    if len(data) < _LENGTH_MIN:
        return
    once, four_times = _calls(work, data), _calls(work, 4 * data)
    assert four_times <= 5 * once + _CALLS_SLACK, (once, four_times)


def _calls(work: Callable[[bytes], object], data: bytes) -> int:
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work(data)
    finally:
        sys.setprofile(before)
    return count
