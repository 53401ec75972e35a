"""How many tokens a text has, where no tokenizer can be asked: an estimate that errs high.

Byte-level tokenizers never make more tokens than bytes, and the fewer the more ordinary the text
is. So every byte is weighed by its class: what is frequent in words runs in long tokens; rare
letters, digits and punctuation in short ones; everything beyond ASCII may take a token a byte.
Every run of letters costs something besides, because tokens seldom cross its edges: that tells
words from hexadecimal noise.

The weights are the least that err high on every class of a measured corpus (words of many
languages, code, JSON, tables, logs, numbers, emoji, base64, noise) with a tokenizer of 49,000
tokens; larger vocabularies make fewer. Every pass over the text is one call into C, so a megabyte
takes about three milliseconds.
"""

import string
import zlib

# Weights are in 64ths of a token; a byte's weight fits into a byte.
_UNIT = 64
_OTHER = 67
_WEIGHTS = {
    "etaoinshrdlu": 19,
    "cmfgpwybv": 48,
    "kjxqz": 64,
    string.ascii_uppercase: 62,
    string.digits: 68,
    string.punctuation: 55,
    " ": 4,
}
_RUN_OF_LETTERS = 40
# A space goes into the token of the word behind it, but not into that of a number.
_SPACE_BEFORE_DIGIT = 64
_SLICE_BYTES = 64 << 10


def _table(members: dict[str, int], other: int) -> bytes:
    table = bytearray([other]) * 256
    for characters, value in members.items():
        for byte in characters.encode():
            table[byte] = value
    return bytes(table)


_WEIGHT_OF = _table(_WEIGHTS, _OTHER)
_LETTERS = _table({string.ascii_letters: ord("L")}, ord("."))
_NUMBERS = _table({string.digits: ord("D"), " ": ord(" ")}, ord("."))


# Adler-32 holds 1 + the sum of the bytes modulo 65521 in its lower half. The sum of so many weights
# is below that, so it is exact.
_SUMMED_AT_ONCE = 65520 // max(_OTHER, *_WEIGHTS.values())


def _sum_of_bytes(data: bytes) -> int:
    """`sum(data)` makes a Python integer of each byte; a checksum of the standard library does not."""
    if len(data) <= _SUMMED_AT_ONCE:
        return (zlib.adler32(data) & 0xFFFF) - 1
    view = memoryview(data)
    return sum(
        (zlib.adler32(view[start : start + _SUMMED_AT_ONCE]) & 0xFFFF) - 1
        for start in range(0, len(data), _SUMMED_AT_ONCE)
    )


def estimate_tokens(text: str) -> int:
    """At least as many as a common tokenizer would make of the text."""
    encoded = text.encode("utf-8", "surrogatepass")
    weight = 0
    # In slices, so that a long text does not keep the interpreter from others for long.
    for start in range(0, len(encoded), _SLICE_BYTES):
        piece = encoded[start : start + _SLICE_BYTES]
        weight += _sum_of_bytes(piece.translate(_WEIGHT_OF))
        # With the byte before the slice, which may end what the slice begins with.
        around = encoded[max(start - 1, 0) : start + _SLICE_BYTES]
        letters = around.translate(_LETTERS)
        runs = letters.count(b".L") + (start == 0 and letters.startswith(b"L"))
        weight += _RUN_OF_LETTERS * runs
        weight += _SPACE_BEFORE_DIGIT * around.translate(_NUMBERS).count(b" D")
    return min(len(encoded), -(-weight // _UNIT))
