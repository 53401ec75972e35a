"""Estimates the tokens of a text without a tokenizer. The estimate errs high.

Byte-level tokenizers never produce more tokens than bytes, and ordinary text produces fewer. So
every byte has a weight by its class: letters that are frequent in words form long tokens; rare
letters, digits and punctuation short ones; each byte beyond ASCII may be a token. Every run of
letters adds a weight, because tokens seldom cross its edges: that distinguishes words from
hexadecimal noise. So does a run of several spaces, which is a separate token.

The weights are the minimum that errs high on every class of a measured corpus (words of many
languages, code, JSON, tables, logs, numbers, emoji, base64, noise, white space, punctuation between
letters) with eight tokenizers of 32,000 to 200,000 tokens: those of SmolLM2, Mistral (three),
Claude 2, Qwen and OpenAI (two). They do not err high on everything. Random letters produce up to
1.6 times as many tokens, and an attacker who knows a tokenizer can find letters that produce twice
as many. The only strict limit is the number of bytes. Every pass over the text is one call into C,
so a megabyte takes about three milliseconds.
"""

import re
import string
import zlib
from collections.abc import Iterable
from itertools import repeat
from operator import and_

import msgspec

from tollkeeper.domain.normal_form import added_bytes

# Weights are in 64ths of a token; a byte's weight fits into a byte.
_UNIT = 64
_OTHER = 78
_WEIGHTS = {
    "etaoinshrdlu": 19,
    "cmfgpwybv": 48,
    "kjxqz": 64,
    string.ascii_uppercase: 62,
    string.digits: 68,
    string.punctuation: 68,
    " ": 4,
}
_RUN_OF_LETTERS = 41
# A space belongs to the token of the following word, but not to that of a number.
_SPACE_BEFORE_DIGIT = 64
_RUN_OF_SPACES = 60
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


# The lower half of Adler-32 is 1 + the sum of the bytes modulo 65521. The sum of this many weights
# is smaller than the modulus, so the result is exact.
_SUMMED_AT_ONCE = 65519 // max(_OTHER, *_WEIGHTS.values())
_PIECES = re.compile(rb"(?s).{1,%d}" % _SUMMED_AT_ONCE).findall


def _sum_of_bytes(data: bytes) -> int:
    """Sums the bytes with a checksum of the standard library, because `sum(data)` creates a Python
    integer for each byte."""
    pieces = _PIECES(data)
    sums: Iterable[int] = map(and_, map(zlib.adler32, pieces), repeat(0xFFFF))
    return sum(sums) - len(pieces)


class TextSize(msgspec.Struct, frozen=True, gc=False):
    # As many as a common tokenizer produces for an ordinary text, or more.
    tokens: int
    # In the longest form that a tokenizer may read. No tokenizer produces more tokens.
    bytes: int


def estimate_tokens(text: str) -> int:
    return measure_text(text).tokens


def measure_text(text: str) -> TextSize:
    encoded = text.encode("utf-8", "surrogatepass")
    added = added_bytes(text)
    weight = 0
    # Slices keep the interpreter from being blocked by a long text.
    for start in range(0, len(encoded), _SLICE_BYTES):
        piece = encoded[start : start + _SLICE_BYTES]
        weight += _sum_of_bytes(piece.translate(_WEIGHT_OF))
        # Includes the byte before the slice, which may end a run at the start of the slice.
        around = encoded[max(start - 1, 0) : start + _SLICE_BYTES]
        letters = around.translate(_LETTERS)
        runs = letters.count(b".L") + (start == 0 and letters.startswith(b"L"))
        weight += _RUN_OF_LETTERS * runs
        numbers = around.translate(_NUMBERS)
        weight += _SPACE_BEFORE_DIGIT * numbers.count(b" D")
        if b"  " in around:
            # Counts the ends of runs. If a slice cuts a run, the part before the cut counts too.
            runs = numbers.count(b"  .") + numbers.count(b"  D") + numbers.endswith(b"  ")
            weight += _RUN_OF_SPACES * runs
    bytes_max = len(encoded) + added
    return TextSize(min(bytes_max, -(-weight // _UNIT) + added), bytes_max)
