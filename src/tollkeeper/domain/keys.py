"""Creates API keys, checks their form without the database, and computes their digests and redacted
forms.

A key consists of a prefix, 32 random base62 characters (190 bits) and a checksum of 6 characters.
The checksum is a CRC-32, which detects every error within four neighbouring bytes. So most typing
errors are rejected without a database query. A single SHA-256 is a safe digest, because 190 random
bits cannot be guessed; a slow password hash would not add protection.
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
# The number of random characters in a redacted key.
_SHOWN_LENGTH = 4

PREFIXES = {KeyKind.PROJECT: "tkp_", KeyKind.ADMIN: "tka_"}
_KINDS = {prefix: kind for kind, prefix in PREFIXES.items()}
_PREFIX_LENGTH = 4
KEY_LENGTH = _PREFIX_LENGTH + _RANDOM_LENGTH + _CHECKSUM_LENGTH
_SHAPE = re.compile(rf"tk[pa]_[0-9A-Za-z]{{{_RANDOM_LENGTH + _CHECKSUM_LENGTH}}}")
# A key in a text, or the beginning of a key that shows more characters than a redacted key.
_KEY_IN_TEXT = re.compile(rf"(tk[pa]_[0-9A-Za-z]{{{_SHOWN_LENGTH}}})[0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """Contains a new key. `value` is shown to the key's creator; the key's database row contains
    only the digest and the redacted value."""

    value: str
    digest: bytes
    redacted_value: str


def mint_key(kind: KeyKind) -> MintedKey:
    body = PREFIXES[kind] + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    value = body + checksum(body)
    return MintedKey(value=value, digest=key_digest(value), redacted_value=redact_key(value))


def key_kind(value: str) -> KeyKind | None:
    """Returns the kind of a well-formed key; None if the text cannot be a key that `mint_key`
    created."""
    if _SHAPE.fullmatch(value) is None:
        return None
    if checksum(value[:-_CHECKSUM_LENGTH]) != value[-_CHECKSUM_LENGTH:]:
        return None
    return _KINDS[value[:_PREFIX_LENGTH]]


def key_digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()


def redact_key(value: str) -> str:
    """Returns the prefix and the first 4 random characters, by which people can distinguish keys in
    a list. The other 28 random characters (166 bits) stay secret."""
    return value[: _PREFIX_LENGTH + _SHOWN_LENGTH] + "..."


def redact_keys(text: str) -> str:
    """Redacts every key in the text, even an incomplete key that shows more than a redacted key."""
    return _KEY_IN_TEXT.sub(r"\1...", text) if "tk" in text else text


def checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
