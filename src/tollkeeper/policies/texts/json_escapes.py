"""Decodes JSON escapes (`\\uXXXX`) in any text for the judge: a capable model reads words written like this,
and a small judge may not."""

import codecs
import re

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPE_LENGTH = 6
# One operation on long text would block all other threads, and need many times its memory.
_SLICE_LENGTH = 1 << 16


def with_decoded_escapes(text: str) -> str:
    """Appends the lines with escapes, decoded. The text itself stays, because what looks like an escape may
    be part of a path (`C:\\ufaced`) or a number (`\\u4111\\u1111`)."""
    first = text.find("\\u")
    if first < 0:
        return text
    start = text.rfind("\n", 0, first) + 1
    end = text.find("\n", text.rfind("\\u"))
    end = len(text) if end < 0 else end
    # A pair becomes one character, a lone surrogate U+FFFD.
    decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
    decoded: list[str] = []
    count = 0
    while start < end:
        stop = min(start + _SLICE_LENGTH, end)
        # It may begin an escape that goes on in the next slice.
        cut = text.rfind("\\", stop - _ESCAPE_LENGTH + 1, stop) if stop < end else -1
        stop = stop if cut < 0 else cut
        unescaped, found = _ESCAPE.subn(_character, text[start:stop])
        decoded.append(decoder.decode(unescaped.encode("utf-16-le", "surrogatepass")))
        count += found
        start = stop
    decoded.append(decoder.decode(b"", final=True))
    return "".join((text, "\n", *decoded)) if count else text


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16))
