"""Signed assertions (JWT): the proof of possession of a private key that token services accept."""

import base64
import contextlib
import hashlib
import re
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tollkeeper.backends.identity.failure import IdentityFailure

_encode = msgspec.json.Encoder(order="deterministic").encode
_CERTIFICATE = re.compile(
    rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----"
)
_DER_SEQUENCE = b"\x30"


def signed_rs256(pem: str, header: Mapping[str, str], claims: Mapping[str, str | int]) -> str:
    """As Google wants it. Raises IdentityFailure for a key that cannot be used."""
    key = _private_key(pem.encode())
    unsigned = _unsigned({"alg": "RS256", "typ": "JWT", **header}, claims)
    return _joined(unsigned, key.sign(unsigned, padding.PKCS1v15(), hashes.SHA256()))


def signed_ps256(pem: bytes, claims: Mapping[str, str | int]) -> str:
    """As Entra wants it: signed with the key of a certificate, and named by its fingerprint. `pem`
    has both. Raises IdentityFailure where it has not."""
    key = _private_key(pem)
    fingerprint = hashlib.sha256(_certificate(pem)).digest()
    header = {"alg": "PS256", "typ": "JWT", "x5t#S256": _base64(fingerprint)}
    unsigned = _unsigned(header, claims)
    pss = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
    return _joined(unsigned, key.sign(unsigned, pss, hashes.SHA256()))


def _certificate(pem: bytes) -> bytes:
    """The first certificate of the file, in DER: only its fingerprint is needed. The library's reader
    of certificates would make every start of a process a tenth of a second longer."""
    block = _CERTIFICATE.search(pem)
    der = b""
    if block is not None:
        with contextlib.suppress(ValueError):
            der = base64.b64decode(b"".join(block[1].split()), validate=True)
    if not der.startswith(_DER_SEQUENCE):
        raise IdentityFailure("the file holds no certificate (PEM)")
    return der


def _private_key(pem: bytes) -> RSAPrivateKey:
    try:
        # The file is the operator's own. To check the arithmetic of its key takes 50 ms, in which the
        # event loop would stand still; a wrong key is refused by the provider.
        key = load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityFailure("the file holds no private key (PEM) without a password") from None
    if not isinstance(key, RSAPrivateKey):
        raise IdentityFailure("the private key is none of RSA")
    return key


def _unsigned(header: Mapping[str, str], claims: Mapping[str, str | int]) -> bytes:
    return f"{_base64(_encode(header))}.{_base64(_encode(claims))}".encode("ascii")


def _joined(unsigned: bytes, signature: bytes) -> str:
    return f"{unsigned.decode('ascii')}.{_base64(signature)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
