"""Creates API keys, and checks, hashes and redacts them without the database.

A key is a prefix, 32 random base62 characters (190 bits) and 6 of a CRC-32, which detects every error within
four neighbouring bytes: most typing errors need no query. One SHA-256 is a safe digest, because nobody
guesses 190 random bits.
"""

import hashlib
import re
import secrets
import zlib
from dataclasses import dataclass

from tollkeeper.core.access import KeyKind

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_LENGTH = 32
_CHECKSUM_LENGTH = 6
# More than the random characters hold, so that each of them is as likely as any other.
_SEED_BYTES = 32
# Random characters in a redacted key.
_SHOWN_LENGTH = 4

PREFIXES = {KeyKind.PROJECT: "tkp_", KeyKind.ADMIN: "tka_"}
_KINDS = {prefix: kind for kind, prefix in PREFIXES.items()}
_PREFIX_LENGTH = 4
KEY_LENGTH = _PREFIX_LENGTH + _RANDOM_LENGTH + _CHECKSUM_LENGTH
_SHAPE = re.compile(rf"tk[pa]_[0-9A-Za-z]{{{_RANDOM_LENGTH + _CHECKSUM_LENGTH}}}")
# Or a beginning that shows more than a redacted key.
_KEY_IN_TEXT = re.compile(rf"(tk[pa]_[0-9A-Za-z]{{{_SHOWN_LENGTH}}})[0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """`value` is only shown to the creator; the database has the digest and the redacted value."""

    value: str
    digest: bytes
    redacted_value: str


def mint_key(kind: KeyKind) -> MintedKey:
    return _minted(kind, "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH)))


def derived_key(kind: KeyKind, seed: bytes) -> MintedKey:
    """Returns the same key for the same seed, which has 32 bytes that nobody else can compute."""
    assert len(seed) == _SEED_BYTES
    number, digits = int.from_bytes(seed), []
    for _ in range(_RANDOM_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return _minted(kind, "".join(digits))


def _minted(kind: KeyKind, random: str) -> MintedKey:
    body = PREFIXES[kind] + random
    value = body + checksum(body)
    return MintedKey(value=value, digest=key_digest(value), redacted_value=redact_key(value))


def key_kind(value: str) -> KeyKind | None:
    """None if `mint_key` can't have made it."""
    if _SHAPE.fullmatch(value) is None:
        return None
    if checksum(value[:-_CHECKSUM_LENGTH]) != value[-_CHECKSUM_LENGTH:]:
        return None
    return _KINDS[value[:_PREFIX_LENGTH]]


def key_digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()


def redact_key(value: str) -> str:
    """The prefix and 4 random characters, enough to tell keys apart in a list. The other 28 (166 bits) stay
    secret."""
    return value[: _PREFIX_LENGTH + _SHOWN_LENGTH] + "..."


def redact_keys(text: str) -> str:
    """Even incomplete ones that show more than a redacted key."""
    return _KEY_IN_TEXT.sub(r"\1...", text) if "tk" in text else text


def checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
