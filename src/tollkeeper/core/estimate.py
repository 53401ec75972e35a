"""Estimates the tokens of a text without a tokenizer. It errs high for ordinary text.

Byte-level tokenizers never make more tokens than bytes, and usually fewer, so every byte gets a weight by its
class: little for letters frequent in words, which form long tokens, more for rare letters, digits and
punctuation, and bytes beyond ASCII may each be a token. Every run of letters adds a weight, because tokens
seldom cross its ends; this tells words from hexadecimal noise. A run of several spaces is a token too.

The weights are the lowest that are high enough on every class of a measured corpus (words of many languages,
code, JSON, tables, logs, numbers, emoji, base64, noise, white space, punctuation between letters) with eight
tokenizers of 32,000 to 200,000 tokens: SmolLM2, Mistral (three), Claude 2, Qwen and OpenAI (two). Other texts
can have more: random letters up to 1.6 times the estimate, and letters that an attacker picks twice. Only the
number of bytes is a strict limit.

All passes run in C, so a megabyte takes about three milliseconds.
"""

import re
import string
from collections.abc import Iterator
from itertools import repeat
from operator import and_
from zlib import adler32

from tollkeeper.core.normal_form import added_bytes

# In 64ths of a token. All are below 256, so a translation table can map bytes to weights.
_UNIT = 64
# Control characters and bytes beyond ASCII.
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
# A space usually belongs to the word after it, but before a digit it's a token.
_SPACE_BEFORE_DIGIT_WEIGHT = 64
_SPACE_RUN_WEIGHT = 60
_SLICE_BYTES = 64 << 10


def _table(members: dict[str, int], other: int) -> bytes:
    """Every character that isn't listed gets `other`."""
    table = bytearray([other]) * 256
    for characters, value in members.items():
        for byte in characters.encode():
            table[byte] = value
    return bytes(table)


# One more than punctuation, which digits really weigh, so that digits can be found in the translated text.
_WEIGHT_OF = _table({**_WEIGHTS, string.digits: _DIGIT_WEIGHT + 1}, _OTHER_WEIGHT)
_DIGIT = b"0".translate(_WEIGHT_OF)
_SPACE_AND_DIGIT = b" 0".translate(_WEIGHT_OF)
# They turn letters into "L", or all bytes but spaces into ".", so that runs can be counted.
_LETTERS = _table({string.ascii_letters: ord("L")}, ord("."))
_SPACES = _table({" ": ord(" ")}, ord("."))


# Adler-32 from 0 has the sum of the bytes modulo 65521 in its lower half. This many weights stay below that,
# so the sum is exact.
_SUMMED_AT_ONCE = 65520 // max(_WEIGHT_OF)
_PIECES = re.compile(rb"(?s).{1,%d}" % _SUMMED_AT_ONCE).findall
_START_VALUES, _LOWER_HALVES = repeat(0), repeat(0xFFFF)


def _sum_of_bytes(data: bytes) -> int:
    """By `zlib.adler32`: `sum(data)` makes a Python integer for each byte."""
    return sum(map(and_, map(adler32, _PIECES(data), _START_VALUES), _LOWER_HALVES))


def _slices(encoded: bytes) -> Iterator[bytes]:
    """Yields slices of the bytes. Each also has the first byte of the next slice."""
    for start in range(0, len(encoded) - 1, _SLICE_BYTES):
        yield encoded[start : start + _SLICE_BYTES + 1]


def estimate_tokens(text: str) -> int:
    return measure_text(text)[0]


def measure_text(text: str) -> tuple[int, int]:
    """The estimate, and an upper limit of the bytes after normalization; no tokenizer makes more tokens than
    those."""
    # So every run of letters begins after another character.
    encoded = b"\n" + text.encode("utf-8", "surrogatepass")
    added = 0 if text.isascii() else added_bytes(text)
    bytes_max = len(encoded) - 1 + added
    weight = 0
    # In slices, because one C call for a long text would block all other threads. A slice's first byte only
    # decides whether a run starts or ends there: the slice before has counted its weight.
    for piece in (encoded,) if len(encoded) <= _SLICE_BYTES else _slices(encoded):
        weights = piece.translate(_WEIGHT_OF)
        weight += (
            _sum_of_bytes(weights)
            - weights[0]
            + _LETTER_RUN_WEIGHT * piece.translate(_LETTERS).count(b".L")
        )
        # `in` first tries to convert the bytes to an integer.
        if weights.find(_DIGIT) >= 0:
            weight -= weights.count(_DIGIT, 1)
            weight += _SPACE_BEFORE_DIGIT_WEIGHT * weights.count(_SPACE_AND_DIGIT)
        # Faster than `find` for texts with single spaces.
        if piece.rfind(b"  ") >= 0:
            # A run that goes on in the next slice counts as one here too.
            spaces = piece.translate(_SPACES)
            runs = spaces.count(b"  .") + spaces.endswith(b"  ")
            weight += _SPACE_RUN_WEIGHT * runs
    return min(bytes_max, -(-weight // _UNIT) + added), bytes_max
