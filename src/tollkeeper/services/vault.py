"""Encrypts and signs with keys that are derived from the installation's secret, one for each
purpose."""

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
        assert len(master) >= MASTER_BYTES_MIN, "the master secret is long enough"
        self._master = master

    def derive(self, purpose: str, *context: bytes) -> bytes:
        """Returns 32 bytes that depend on the purpose and on every part of the context. Each part
        is hashed with its length, so that two lists of parts never give the same input."""
        mac = hmac.new(self._master, digestmod=hashlib.sha256)
        for part in (purpose.encode(), *context):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()

    def seal(self, plain: bytes, purpose: str, *context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.derive(purpose, *context)).encrypt(nonce, plain, None)

    def unseal(self, sealed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """Returns None if `sealed` has another secret or context, or was changed."""
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(self.derive(purpose, *context)).decrypt(nonce, body, None)
        except (InvalidTag, ValueError):  # ValueError: too short to be a sealed value
            return None

    def sign(self, payload: bytes, purpose: str, *context: bytes) -> bytes:
        return self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES] + payload

    def verify(self, signed: bytes, purpose: str, *context: bytes) -> bytes | None:
        """Returns the payload, or None if the signature does not match this payload and context."""
        signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        expected = self.derive(purpose, payload, *context)[:_SIGNATURE_BYTES]
        return payload if hmac.compare_digest(signature, expected) else None
