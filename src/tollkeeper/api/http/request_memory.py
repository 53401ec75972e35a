"""How much memory a request needs, from its body.

While a call is in progress, memory holds its body, the texts that were decoded from it, and a third form: the
text for the judge, and after that the body for the backend until the backend has taken it.
"""

# Of the objects that are built for an element of an array or object. Measured: 70 to 126.
_ELEMENT_BYTES = 128
# The second to fourth byte of a character in UTF-8, and the first one of a character that needs four bytes
# in a Python string.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
_FOUR_BYTE_STARTS = tuple(bytes([start]) for start in range(0xF0, 0xF5))
_SURROGATES = (b"\\ud", b"\\uD")
_SLICE_BYTES = 32 << 10


def memory_of(body: bytes, elements: int) -> int:
    """At most how many bytes a request with this body needs. One text of the body may be nearly all of it,
    and one character decides how many bytes each character of a Python string takes."""
    return len(body) + 2 * max(len(body), _text_bytes(body)) + elements * _ELEMENT_BYTES


def _text_bytes(body: bytes) -> int:
    if body.isascii() and b"\\u" not in body:
        return len(body)
    is_wide = any(start in body for start in (*_FOUR_BYTE_STARTS, *_SURROGATES))
    return (4 if is_wide else 2) * _characters(body)


def _characters(body: bytes) -> int:
    """Counted in slices, so that a thread leaves the interpreter to others in between."""
    return sum(
        len(body[start : start + _SLICE_BYTES].translate(None, _CONTINUATIONS))
        for start in range(0, len(body), _SLICE_BYTES)
    )
