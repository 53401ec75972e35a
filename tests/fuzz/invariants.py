"""Checks that targets share: work grows only linearly with the input, and cuts do not change results."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

# The number of calls that do not depend on the input's size.
_CALLS_SLACK = 400
_LENGTH_MIN = 16


def pieces(data: bytes, cut_by: bytes) -> list[bytes]:
    """Cuts the data into pieces. The bytes of `cut_by` are their lengths, and the last piece is the rest."""
    found, start = [], 0
    for step in cut_by:
        end = start + step
        if end >= len(data):
            break
        found.append(data[start:end])
        start = end
    return [*found, data[start:]]


def assert_prefix(first: Sequence[object], second: Sequence[object]) -> None:
    """Checks that the longer sequence begins with the shorter: a cut may only change when an error is found."""
    shorter, longer = sorted((first, second), key=len)
    assert list(longer[: len(shorter)]) == list(shorter)


def assert_linear(work: Callable[[bytes], object], data: bytes) -> None:
    """Checks that four times the input needs at most about four times the calls, including those in C."""
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
