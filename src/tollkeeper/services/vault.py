"""Encrypts and signs data. Each purpose has its own key, which is derived from the installation's
master secret."""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTER_BYTES_MIN = 32
_NONCE_BYTES = 12
_SIGNATURE_BYTES = 16


class Vault:
    """Derives keys from one master secret, which is never stored in the database."""

    def __init__(self, master: bytes) -> None:
        assert len(master) >= MASTER_BYTES_MIN, "the master secret must have at least 32 bytes"
        self._master = master

    def derive(self, purpose: str, *context: bytes) -> bytes:
        """Returns 32 bytes that depend on the purpose and on every part of the context. Each part
        is hashed together with its length, so that different lists of parts never give the same
        hash input."""
        mac = hmac.new(self._master, digestmod=hashlib.sha256)
        for part in (purpose.encode(), *context):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()

    def seal(self, plain: bytes, purpose: str, *context: bytes) -> bytes:
        """Encrypts a value, so that only `unseal` with the same purpose and context can read it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.derive(purpose, *context)).encrypt(nonce, plain, None)

    def unseal(self, sealed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """Decrypts a sealed value. Returns None if it was sealed with another master secret,
        purpose or context, or if it was changed."""
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(self.derive(purpose, *context)).decrypt(nonce, body, None)
        except (InvalidTag, ValueError):  # ValueError means that `sealed` is too short.
            return None

    def sign(self, payload: bytes, purpose: str, *context: bytes) -> bytes:
        """Returns the signature followed by the payload, which is not encrypted."""
        return self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES] + payload

    def verify(self, signed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """Returns the payload, or None if the signature does not match the payload, the purpose and
        the context."""
        signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        expected = self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES]
        return payload if hmac.compare_digest(signature, expected) else None
