"""Bounds on the structure of a JSON body, checked in one linear pass before anything is built of it.

The pass works on slices with operations of `bytes`. None of them takes longer than about a
millisecond, so that a thread that runs the pass leaves the interpreter to others in between.
"""

from collections.abc import Iterator
from itertools import accumulate

from tollkeeper.domain.errors import InvalidRequest

DEPTH_MAX = 64
_SLICE_BYTES = 32 << 10
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# A body that is larger, or may have more elements, takes longer than a few milliseconds to decode.
_SMALL_BYTES = 128 << 10
_FEW_ELEMENTS = 5000


def plain_elements(body: bytes, elements_max: int) -> int | None:
    """How many elements the body has at most, if it is small, and inside of its bounds even if no bracket
    and no comma of it is part of a string. Nearly every body is; None for any other."""
    if len(body) > _SMALL_BYTES:
        return None
    openings = _openings(body)
    elements = openings + body.count(b",")
    is_plain = openings <= DEPTH_MAX and elements <= min(elements_max, _FEW_ELEMENTS)
    return elements if is_plain else None


def is_large(body: bytes) -> bool:
    """Whether the body is to be decoded beside the event loop."""
    return len(body) > _SMALL_BYTES or _openings(body) + body.count(b",") > _FEW_ELEMENTS


def check_bounds(body: bytes, elements_max: int) -> int:
    """Refuses a body that is nested too deeply, or whose arrays and objects have together more than
    `elements_max` elements, and returns their number. An empty array or object counts as one element of its
    own."""
    elements = depth = 0
    for structure in _structure(body):
        elements += _openings(structure) + structure.count(b",")
        if elements > elements_max:
            raise InvalidRequest(f"The body has more than {elements_max} elements.")
        brackets = structure.translate(None, _ALL_BUT_BRACKETS)
        depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=depth))
        if max(depths) > DEPTH_MAX:
            raise InvalidRequest(f"The body is nested more than {DEPTH_MAX} levels deep.")
        depth = depths[-1]
    return elements


def _openings(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _structure(body: bytes) -> Iterator[bytes]:
    """What is outside of strings, slice by slice."""
    inside = False
    start = 0
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The slice would end between a backslash and what it escapes.
            piece = body[start : start + _SLICE_BYTES + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Every quote that is left begins or ends a string.
        parts = piece.split(b'"')
        yield b"".join(parts[1::2] if inside else parts[0::2])
        inside ^= len(parts) % 2 == 0
