"""AWS Signature Version 4. Gets the time as an argument, does no I/O. Checked with AWS's examples
in `tests/providers/identity/test_sigv4.py`."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"
_SCOPE_END = "aws4_request"
_UNRESERVED = "-_.~"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Only temporary keys have a session token."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a signature covers."""

    method: str
    # As sent, with its query.
    path: str
    # Lower-case names. `host` is required.
    headers: Mapping[str, str]
    body: bytes


def signing_headers(
    keys: SigningKeys, request: SignedRequest, *, region: str, service: str, now: float
) -> dict[str, str]:
    """To add to the request. `now` is in seconds since 1970."""
    time = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": time}
    if keys.session_token:
        added["x-amz-security-token"] = keys.session_token
    headers = {**request.headers, **added}
    scope = f"{time[:8]}/{region}/{service}/{_SCOPE_END}"
    canonical = canonical_request(request, headers)
    to_sign = "\n".join((_ALGORITHM, time, scope, _hash(canonical.encode())))
    key = _signing_key(keys.secret_key, time[:8], region, service)
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    added["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access_key}/{scope}, "
        f"SignedHeaders={_names(headers)}, Signature={signature}"
    )
    return added


def canonical_request(request: SignedRequest, headers: Mapping[str, str]) -> str:
    """As AWS defines it."""
    path, _, query = request.path.partition("?")
    # Encoded once more than in the request, as AWS requires for all services except S3.
    lines = [request.method, quote(path or "/", safe=f"/{_UNRESERVED}"), _canonical_query(query)]
    lines += [f"{name}:{' '.join(headers[name].split())}" for name in sorted(headers)]
    return "\n".join([*lines, "", _names(headers), _hash(request.body)])


def _canonical_query(query: str) -> str:
    """Sorted by name and value. Encoded characters stay encoded."""
    pairs = [part.partition("=") for part in query.split("&") if part]
    return "&".join(f"{name}={value}" for name, value in sorted((n, v) for n, _, v in pairs))


def _names(headers: Mapping[str, str]) -> str:
    return ";".join(sorted(headers))


def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, _SCOPE_END):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
