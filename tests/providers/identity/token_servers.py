"""Scripted token services, and backends that renew their tokens after short times."""

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
from tests.support.upstream import Peer, Received, Upstream, Verb, answer
from tollkeeper.providers.identities import AwsIdentity, Identity
from tollkeeper.providers.identity.credential import BearerToken, Signature
from tollkeeper.providers.identity.renewal import RenewalTimes
from tollkeeper.providers.routing import RoutedBackend

SECRET = "a-very-secret-value"
# With these times, a value is renewed after 5 % of its lifetime, and pauses are short.
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
    """Returns a refusal that quotes a secret, as if the client had sent it."""
    body = {"error": error, "error_description": f"AADSTS7000215: you sent {SECRET}"}
    return answer(body, status=status)


def authority(*script: Verb) -> Verb:
    """Returns an Entra authority that names its token endpoint, and plays the script at this endpoint."""
    tokens = iter(script)
    present: list[Verb] = []

    async def verb(peer: Peer) -> None:
        path = peer.request.path
        if path.endswith("/.well-known/openid-configuration"):
            base = f"https://{peer.request.headers['host']}/tenant"
            document = {
                "issuer": f"{base}/v2.0",
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "token_endpoint": f"{base}/oauth2/v2.0/token",
            }
            await answer(document)(peer)
            return
        present[:] = [next(tokens, *present)]
        await present[0](peer)

    return verb


def token_requests(upstream: Upstream) -> list[Received]:
    """Returns all requests except those for the address of the token endpoint."""
    return [one for one in upstream.requests if "well-known" not in one.path]


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
    return BearerToken(identity, times=times)


@asynccontextmanager
async def identified(
    identity: Identity,
    *urls: str,
    times: RenewalTimes = QUICK,
    now: Callable[[], float] = time.time,
    **settings: Any,
) -> AsyncIterator[RoutedBackend]:
    """Yields a started backend with this identity, whose tokens are renewed by these times."""
    credential = opened(identity, times=times, now=now)
    backend = RoutedBackend(make_config(*urls, api_key=None, **settings), credential)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()
