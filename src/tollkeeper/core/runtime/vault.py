"""Encrypts and signs data, with a key per purpose derived from the installation's master secret."""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTER_BYTES_MIN = 32
_NONCE_BYTES = 12
_SIGNATURE_BYTES = 16


class Vault:
    """The master secret is never in the database."""

    def __init__(self, master: bytes) -> None:
        assert len(master) >= MASTER_BYTES_MIN, "the master secret must have at least 32 bytes"
        self._master = master

    def derive(self, purpose: str, *context: bytes) -> bytes:
        """With their lengths, so different lists of parts never give the same hash."""
        mac = hmac.new(self._master, digestmod=hashlib.sha256)
        for part in (purpose.encode(), *context):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()

    def seal(self, plain: bytes, purpose: str, *context: bytes) -> bytes:
        """Only `unseal` with the same purpose and context can read it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.derive(purpose, *context)).encrypt(nonce, plain, None)

    def unseal(self, sealed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """None if another master secret, purpose or context sealed it, or it was changed."""
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(self.derive(purpose, *context)).decrypt(nonce, body, None)
        except (InvalidTag, ValueError):  # ValueError means that `sealed` is too short.
            return None

    def sign(self, payload: bytes, purpose: str, *context: bytes) -> bytes:
        """The signature, then the payload, unencrypted."""
        return self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES] + payload

    def verify(self, signed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """None if the signature doesn't match payload, purpose and context."""
        signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        expected = self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES]
        return payload if hmac.compare_digest(signature, expected) else None
