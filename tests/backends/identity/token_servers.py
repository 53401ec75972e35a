"""Scripted token services, and credentials that ask them with short times."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.support.backend_calls import make_config
from tests.support.upstream import Received, Upstream, Verb, answer
from tollkeeper.backends.identities import AwsIdentity, Identity
from tollkeeper.backends.identity.credential import BearerToken, Signature
from tollkeeper.backends.identity.renewal import RenewalTimes
from tollkeeper.backends.routing import RoutedBackend

SECRET = "a-very-secret-value"
# A value is renewed soon after it was obtained, and attempts are repeated soon.
QUICK = RenewalTimes(
    ahead_s=1e9,
    ahead_share=0.95,
    unused_s=0.05,
    attempt_s=15.0,
    pause_s=0.05,
    pause_s_max=0.1,
    pause_s_max_without=0.1,
    interval_s_min=0.01,
)


def token(name: str, *, expires_in: Any = 3600) -> Verb:
    return answer({"access_token": name, "expires_in": expires_in, "token_type": "Bearer"})


def refused(status: int = 400, error: Any = "invalid_grant") -> Verb:
    """A refusal that quotes what it was sent."""
    body = {"error": error, "error_description": f"you sent {SECRET}"}
    return answer(body, status=status)


def form(request: Received) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


def origin(upstream: Upstream) -> str:
    return upstream.url.removesuffix("/v1")


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def service_account(path: Path, key: rsa.RSAPrivateKey, token_uri: str, **changes: Any) -> Path:
    document = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "key-1",
        "private_key": pem(key),
        "client_email": "gateway@p.iam.gserviceaccount.com",
        "token_uri": token_uri,
        **changes,
    }
    path.write_text(json.dumps(document))
    return path


def opened(
    identity: Identity,
    *,
    times: RenewalTimes = QUICK,
    now: Callable[[], float] = time.time,
) -> BearerToken | Signature:
    if isinstance(identity, AwsIdentity):
        return Signature(identity, times=times, now=now)
    return BearerToken(identity, times=times, now=now)


@asynccontextmanager
async def identified(
    identity: Identity,
    *urls: str,
    times: RenewalTimes = QUICK,
    now: Callable[[], float] = time.time,
    **settings: Any,
) -> AsyncIterator[RoutedBackend]:
    """A started backend with this identity, whose tokens are renewed by these times."""
    credential = opened(identity, times=times, now=now)
    backend = RoutedBackend(make_config(*urls, api_key=None, **settings), credential)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()
