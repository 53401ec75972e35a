"""API keys: how they are minted, recognised without a database, digested and shown.

A key is `prefix + 32 random base62 characters + 6 characters of checksum`: 190 random bits. The
checksum is a CRC-32, which finds every error inside four neighbouring bytes, so a typo is refused
before any look-up. Keys are high-entropy, so one SHA-256 is a sound digest: there is nothing to
guess that a slow hash would protect.
"""

import hashlib
import re
import secrets
import zlib
from dataclasses import dataclass

from tollkeeper.domain.access import KeyKind

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_LENGTH = 32
_CHECKSUM_LENGTH = 6
_SHOWN_LENGTH = 4

PREFIXES = {KeyKind.PROJECT: "tkp_", KeyKind.ADMIN: "tka_"}
_KINDS = {prefix: kind for kind, prefix in PREFIXES.items()}
_PREFIX_LENGTH = 4
_SHAPE = re.compile(rf"tk[pa]_[0-9A-Za-z]{{{_RANDOM_LENGTH + _CHECKSUM_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. `value` leaves the process once; only the rest is stored."""

    value: str
    digest: bytes
    redacted_value: str


def mint_key(kind: KeyKind) -> MintedKey:
    body = PREFIXES[kind] + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    value = body + _checksum(body)
    return MintedKey(value=value, digest=key_digest(value), redacted_value=redact_key(value))


def key_kind(value: str) -> KeyKind | None:
    """The kind of a well-formed key, or None for anything that no mint has ever made."""
    if _SHAPE.fullmatch(value) is None:
        return None
    if _checksum(value[:-_CHECKSUM_LENGTH]) != value[-_CHECKSUM_LENGTH:]:
        return None
    return _KINDS[value[:_PREFIX_LENGTH]]


def key_digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()


def redact_key(value: str) -> str:
    """Enough to tell keys apart in a list; 28 unknown characters (166 bits) remain."""
    return value[: _PREFIX_LENGTH + _SHOWN_LENGTH] + "..."


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
