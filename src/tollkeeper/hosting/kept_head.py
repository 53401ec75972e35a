"""Recognises the head of a request that came before on the same connection.

A client sends nearly the same head with each request: only the length of the body differs. Such a
head was parsed and checked as a whole, so all that is left to do is to compare it.
"""

import re

import msgspec

from tollkeeper.api.http.exchange import RequestHead

# The line is found by its beginning, and a value has no line breaks, so nothing else looks like it.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
# A larger head is not kept, because an idle connection should need little memory.
_BYTES_MAX = 4 << 10
_DIGITS_MAX = 10
# Headers that change what the bytes behind the head are.
_SPECIAL = (b"expect", b"transfer-encoding")


class KeptHead(msgspec.Struct, frozen=True):
    head: RequestHead
    # What stands before and behind the digits of the body's length.
    before: bytes
    behind: bytes

    def body_of(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body, and as much of it as is there, where `data` is a request with this
        head, or the beginning of one that contains the head, and nothing else."""
        before, behind = self.before, self.behind
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _DIGITS_MAX)
        if end < 0 or not data.startswith(behind, end):
            return None
        digits, body = data[start:end], data[end + len(behind) :]
        if not digits.isdigit():
            return None
        length = int(digits)
        return None if len(body) > length else (length, body)


def keep_head(head: RequestHead, raw: bytes) -> KeptHead | None:
    """`raw` is the head as it came. None where a repetition could not be told by its bytes."""
    if len(raw) > _BYTES_MAX or not raw.endswith(_HEAD_END) or head.is_http10:
        return None
    if any(name in head.headers for name in _SPECIAL):
        return None
    lengths = list(_LENGTH.finditer(raw))
    if len(lengths) != 1:
        return None
    return KeptHead(head, raw[: lengths[0].start(1)], raw[lengths[0].end(1) :])
