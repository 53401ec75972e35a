"""How many bytes a text may gain when a tokenizer normalizes it.

Some tokenizers convert to NFC or NFKC first, where one character may become many: U+FDFA, 3 bytes, becomes 18
characters with 33. So the bytes before are no upper limit of the tokens.
"""

import re
import unicodedata

# All characters that get longer, and some that don't.
_BLOCKS = (
    (0x00A8, 0x00BE),
    (0x013F, 0x0149),
    (0x01C4, 0x01C6),
    (0x02D8, 0x02DD),
    (0x0344, 0x0385),
    (0x0587, 0x0587),
    (0x0675, 0x0678),
    (0x0958, 0x0A5E),
    (0x0B5C, 0x0B5D),
    (0x0E33, 0x0FB9),
    (0x1FC1, 0x1FEE),
    (0x2033, 0x2057),
    (0x2150, 0x2189),
    (0x222C, 0x2230),
    (0x247D, 0x2487),
    (0x2A0C, 0x2A0C),
    (0x2ADC, 0x2ADC),
    (0x309B, 0x309F),
    (0x30FF, 0x30FF),
    (0x3200, 0x33FE),
    (0xFA6C, 0xFEFC),
    (0x1D15E, 0x1D164),
    (0x1D1BB, 0x1D1C0),
    (0x1F12A, 0x1F12A),
    (0x1F200, 0x1F248),
)
# They merge with the letter before. If it has an accent, as in é, that becomes a mark of its own, with at
# most 3 bytes.
_MERGED_MARKS = re.compile("[\u031b-\u0331]")
_SEPARATE_ACCENT_BYTES = 3
# Not in normal form, but they don't get longer. Without them, `is_normalized` quickly accepts most texts.
_FREQUENT = "\u00a0\u2026\u2122\u3000\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\uff5e"
# Characters for each C call, which blocks other threads.
_SLICE = 4096


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def growth(character: str) -> int:
    """In the longer of both normal forms."""
    forms = unicodedata.normalize("NFC", character), unicodedata.normalize("NFKC", character)
    return max(0, max(map(_utf8_length, forms)) - _utf8_length(character))


_GROWTH = {
    character: grown
    for first, last in _BLOCKS
    for character in map(chr, range(first, last + 1))
    if (grown := growth(character))
}
_GROWING = re.compile(f"[{''.join(_GROWTH)}]")


def added_bytes(text: str) -> int:
    """An upper limit."""
    return sum(_added_bytes(text[start : start + _SLICE]) for start in range(0, len(text), _SLICE))


def _added_bytes(piece: str) -> int:
    unusual = piece
    for character in _FREQUENT:
        unusual = unusual.replace(character, "")
    if unicodedata.is_normalized("NFKC", unusual):
        return 0
    grown = sum(map(_GROWTH.__getitem__, _GROWING.findall(unusual)))
    return grown + _SEPARATE_ACCENT_BYTES * len(_MERGED_MARKS.findall(unusual))
