"""Computes how much longer a text becomes in the normal form of some tokenizers.

Those tokenizers first convert the text to NFC or NFKC, where one character may become many: U+FDFA,
a word of three bytes, becomes eighteen letters of 33 bytes. So the bytes of a text alone do not
limit its tokens.
"""

import re
import unicodedata

# These blocks contain all characters that become longer, and others.
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
# Marks below a letter. The normal form joins such a mark with its letter, and writes the letter's
# previous accents separately, with at most this many bytes.
_JOINING = re.compile("[\u031b-\u0331]")
_WRITTEN_OUT_BYTES = 3
# Frequent characters that are not in normal form but do not become longer. Without them the quick
# check accepts most texts.
_FREQUENT = "\u00a0\u2026\u2122\u3000\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\uff5e"
# A call into C blocks other threads, so each one is short.
_SLICE = 4096


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def growth(character: str) -> int:
    """Returns the bytes by which the character becomes longer."""
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
    """Returns the maximum bytes by which the text may become longer."""
    if text.isascii():
        return 0
    return sum(_added_bytes(text[start : start + _SLICE]) for start in range(0, len(text), _SLICE))


def _added_bytes(piece: str) -> int:
    unusual = piece
    for character in _FREQUENT:
        unusual = unusual.replace(character, "")
    if unicodedata.is_normalized("NFKC", unusual):
        return 0
    grown = sum(map(_GROWTH.__getitem__, _GROWING.findall(unusual)))
    return grown + _WRITTEN_OUT_BYTES * len(_JOINING.findall(unusual))
