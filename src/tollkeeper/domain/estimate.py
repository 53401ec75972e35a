"""Estimates the tokens of a text without a tokenizer. The estimate errs high for ordinary text.

Byte-level tokenizers never produce more tokens than bytes, and for ordinary text they produce
fewer. So every byte gets a weight that depends on its class. Letters that are frequent in words
form long tokens and have small weights. Rare letters, digits and punctuation form short tokens.
Each byte beyond ASCII may be a token. Every run of letters adds a further weight, because tokens
seldom cross the ends of a run; this weight distinguishes words from hexadecimal noise. A run of
several spaces adds a weight too, because it is a separate token.

The weights are the lowest for which the estimate is high enough on every class of a measured corpus
(words of many languages, code, JSON, tables, logs, numbers, emoji, base64, noise, white space,
punctuation between letters). Eight tokenizers were measured, with vocabularies of 32,000 to 200,000
tokens: those of SmolLM2, Mistral (three), Claude 2, Qwen and OpenAI (two). The estimate can be too
low for other texts: random letters produce up to 1.6 times the estimate, and an attacker who knows
a tokenizer can find letters that produce twice the estimate. Only the number of bytes is a strict
limit.

All passes over the text run in C code, so a megabyte takes about three milliseconds.
"""

import re
import string
from collections.abc import Iterator
from itertools import repeat
from operator import and_
from zlib import adler32

from tollkeeper.domain.normal_form import added_bytes

# Weights are in 64ths of a token. Every weight is less than 256, so that a translation table can
# map each byte to its weight.
_UNIT = 64
# The weight of each byte that `_WEIGHTS` does not list: control characters and bytes beyond ASCII.
_OTHER_WEIGHT = 78
_DIGIT_WEIGHT = 68
_WEIGHTS = {
    "etaoinshrdlu": 19,
    "cmfgpwybv": 48,
    "kjxqz": 64,
    string.ascii_uppercase: 62,
    string.digits: _DIGIT_WEIGHT,
    string.punctuation: 68,
    " ": 4,
}
_LETTER_RUN_WEIGHT = 41
# A space usually belongs to the token of the word after it. Before a digit it is a separate token.
_SPACE_BEFORE_DIGIT_WEIGHT = 64
_SPACE_RUN_WEIGHT = 60
_SLICE_BYTES = 64 << 10


def _table(members: dict[str, int], other: int) -> bytes:
    """Returns a translation table that maps the listed characters to their values, and every other
    byte to `other`."""
    table = bytearray([other]) * 256
    for characters, value in members.items():
        for byte in characters.encode():
            table[byte] = value
    return bytes(table)


# Digits weigh as much as punctuation. In this table their value is larger by one, so that no other byte
# has the same value and digits can be found in the translated text.
_WEIGHT_OF = _table({**_WEIGHTS, string.digits: _DIGIT_WEIGHT + 1}, _OTHER_WEIGHT)
_DIGIT = b"0".translate(_WEIGHT_OF)
_SPACE_AND_DIGIT = b" 0".translate(_WEIGHT_OF)
# These tables replace letters by "L" (first table), or all bytes except spaces (second table) by ".",
# so that runs can be counted.
_LETTERS = _table({string.ascii_letters: ord("L")}, ord("."))
_SPACES = _table({" ": ord(" ")}, ord("."))


# Adler-32 with the start value 0 has the sum of the bytes modulo 65521 in its lower half. The sum of
# this many weights is smaller than the modulus, so the checksum contains the exact sum.
_SUMMED_AT_ONCE = 65520 // max(_WEIGHT_OF)
_PIECES = re.compile(rb"(?s).{1,%d}" % _SUMMED_AT_ONCE).findall
_START_VALUES, _LOWER_HALVES = repeat(0), repeat(0xFFFF)


def _sum_of_bytes(data: bytes) -> int:
    """Sums the bytes by means of `zlib.adler32`. This is faster than `sum(data)`, which handles a
    Python integer for each byte."""
    return sum(map(and_, map(adler32, _PIECES(data), _START_VALUES), _LOWER_HALVES))


def _slices(encoded: bytes) -> Iterator[bytes]:
    """Yields slices of the bytes. Each also has the first byte of the next slice."""
    for start in range(0, len(encoded) - 1, _SLICE_BYTES):
        yield encoded[start : start + _SLICE_BYTES + 1]


def estimate_tokens(text: str) -> int:
    return measure_text(text)[0]


def measure_text(text: str) -> tuple[int, int]:
    """Returns an estimate of the tokens, which is at least a common tokenizer's count for ordinary
    text, and an upper limit of the bytes after a tokenizer has converted the text to a Unicode
    normal form. No tokenizer produces more tokens than these bytes."""
    # A byte in front of the text lets every run of letters begin after another character.
    encoded = b"\n" + text.encode("utf-8", "surrogatepass")
    added = 0 if text.isascii() else added_bytes(text)
    bytes_max = len(encoded) - 1 + added
    weight = 0
    # Works in slices, because one call into C code for a long text would block all other threads.
    # The first byte of a slice decides whether a run starts or ends there. The slice before has
    # counted the weight of this byte.
    for piece in (encoded,) if len(encoded) <= _SLICE_BYTES else _slices(encoded):
        weights = piece.translate(_WEIGHT_OF)
        weight += (
            _sum_of_bytes(weights)
            - weights[0]
            + _LETTER_RUN_WEIGHT * piece.translate(_LETTERS).count(b".L")
        )
        # `find` takes less time than `in`, which first tries to convert the bytes to an integer.
        if weights.find(_DIGIT) >= 0:
            weight -= weights.count(_DIGIT, 1)
            weight += _SPACE_BEFORE_DIGIT_WEIGHT * weights.count(_SPACE_AND_DIGIT)
        # If a text has single spaces, `rfind` is faster than `find`.
        if piece.rfind(b"  ") >= 0:
            # Counts the ends of runs. If a slice ends inside a run, the part of the run before that
            # end counts as a run too.
            spaces = piece.translate(_SPACES)
            runs = spaces.count(b"  .") + spaces.endswith(b"  ")
            weight += _SPACE_RUN_WEIGHT * runs
    return min(bytes_max, -(-weight // _UNIT) + added), bytes_max
