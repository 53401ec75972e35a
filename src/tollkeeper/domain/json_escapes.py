r"""Decodes the JSON escapes of characters (`\uXXXX`) in any text for the judge, which is the model
that answers policy questions.

A capable model reads words that are written in such escapes, and a small judge may not.
"""

import codecs
import re

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPE_LENGTH = 6
# Long text is decoded in slices of this length, because one operation on the whole text would block all
# other threads for too long, and would need many times the memory of the text.
_SLICE_LENGTH = 1 << 16


def with_decoded_escapes(text: str) -> str:
    r"""Returns the text, followed by its lines with escapes, from the first to the last, in which all
    escapes are decoded. The text itself stays readable, because what looks like an escape may be part
    of a path (`C:\ufaced`) or a number (`\u4111\u1111`)."""
    first = text.find("\\u")
    if first < 0:
        return text
    start = text.rfind("\n", 0, first) + 1
    end = text.find("\n", text.rfind("\\u"))
    end = len(text) if end < 0 else end
    # A surrogate pair becomes one character; a surrogate without its partner becomes U+FFFD.
    decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
    decoded: list[str] = []
    count = 0
    while start < end:
        stop = min(start + _SLICE_LENGTH, end)
        # A backslash this close to the end of the slice may begin an escape that continues after it.
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
