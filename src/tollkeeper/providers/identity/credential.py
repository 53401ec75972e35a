"""An identity's two credentials (`providers/credentials`): a bearer token, and a signature of each
request. The providers' libraries block, so each attempt runs in a thread. A hanging one occupies at
most one thread per credential, and doesn't keep the process from ending."""

import asyncio
import importlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from tollkeeper.providers.credentials import CredentialKind, OutgoingRequest, key_header
from tollkeeper.providers.identities import (
    AwsIdentity,
    EntraIdentity,
    GoogleIdentity,
    Identity,
    region_in,
)
from tollkeeper.providers.identity.failure import IdentityFailure, as_identity_failure
from tollkeeper.providers.identity.renewal import Expiring, RenewalTimes, Renewed
from tollkeeper.providers.identity.sigv4 import SignedRequest, SigningKeys, signing_headers

_MODULES = {
    GoogleIdentity: "tollkeeper.providers.identity.google",
    EntraIdentity: "tollkeeper.providers.identity.entra",
    AwsIdentity: "tollkeeper.providers.identity.aws",
}
THREAD_NAME = "credential"
# A larger body is signed in a thread: hashing 32 MB takes 20 ms, or 250 ms on a processor without
# SHA-256 instructions.
_SIGNED_AT_ONCE_BYTES_MAX = 1 << 20
_DEFAULT_TIMES = RenewalTimes()
_Value = TypeVar("_Value", str, SigningKeys)


class _ThreadedObtain(Generic[_Value]):
    """One attempt at a time."""

    def __init__(self, identity: Identity) -> None:
        # At the start, because the import blocks the event loop for a second.
        self._obtain: Callable[[Any], Expiring[_Value]] = importlib.import_module(
            _MODULES[type(identity)]
        ).obtain
        self._identity = identity
        self._thread: threading.Thread | None = None

    async def __call__(self, deadline: float) -> Expiring[_Value]:
        """Raises IdentityFailure. A blocking library can't be interrupted, so `deadline` is
        ignored: the caller sets a timeout, which the thread may outlive."""
        if self._thread is not None and self._thread.is_alive():
            raise IdentityFailure("the previous attempt has not ended")
        result: Future[Expiring[_Value]] = Future()
        # A running future can't be cancelled, so the thread can always set its result.
        result.set_running_or_notify_cancel()
        self._thread = threading.Thread(
            target=self._run, args=(result,), name=THREAD_NAME, daemon=True
        )
        self._thread.start()
        return await asyncio.wrap_future(result)

    def _run(self, result: Future[Expiring[_Value]]) -> None:
        try:
            result.set_result(self._obtain(self._identity))
        except IdentityFailure as failure:
            result.set_exception(failure)
        except Exception as exc:  # noqa: BLE001 - a library may raise any exception
            result.set_exception(as_identity_failure(exc))


class BearerToken:
    fixed_headers: bytes | None = None

    def __init__(
        self, identity: GoogleIdentity | EntraIdentity, *, times: RenewalTimes = _DEFAULT_TIMES
    ) -> None:
        obtain: _ThreadedObtain[str] = _ThreadedObtain(identity)
        self._token = Renewed(obtain, description=identity.description, times=times)

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        return key_header(CredentialKind.BEARER, await self._token.get(deadline=deadline))

    @property
    def secrets(self) -> tuple[str, ...]:
        return self._token.values

    def doubt(self) -> None:
        self._token.doubt()

    def start(self) -> None:
        self._token.start()

    async def close(self) -> None:
        await self._token.close()


class Signature:
    """With AWS keys, which may expire."""

    fixed_headers: bytes | None = None

    def __init__(
        self,
        identity: AwsIdentity,
        *,
        times: RenewalTimes = _DEFAULT_TIMES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._region = identity.region
        # By host. Replicas may be in different regions.
        self._regions: dict[str, str] = {}
        self._service = identity.service
        self._now = now
        obtain: _ThreadedObtain[SigningKeys] = _ThreadedObtain(identity)
        self._keys = Renewed(obtain, description=identity.description, times=times)

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        keys = await self._keys.get(deadline=deadline)
        host = request.host
        region = self._regions.get(host)
        if region is None:
            region = self._regions[host] = region_in(host) or self._region
        signed_parts = SignedRequest("POST", request.path, {"host": host}, request.body)
        sign = partial(
            signing_headers,
            keys,
            signed_parts,
            region=region,
            service=self._service,
            now=self._now(),
        )
        is_large = len(request.body) > _SIGNED_AT_ONCE_BYTES_MAX
        headers = await asyncio.to_thread(sign) if is_large else sign()
        return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(
            secret
            for keys in self._keys.values
            for secret in (keys.access_key, keys.secret_key, keys.session_token)
            if secret
        )

    def doubt(self) -> None:
        self._keys.doubt()

    def start(self) -> None:
        self._keys.start()

    async def close(self) -> None:
        await self._keys.close()


def open_identity(identity: Identity) -> BearerToken | Signature:
    return Signature(identity) if isinstance(identity, AwsIdentity) else BearerToken(identity)


async def try_identity(identity: Identity, *, timeout_s: float) -> float | None:
    """Once. Returns the lifetime in seconds; None if it doesn't expire. Raises IdentityFailure."""
    loop = asyncio.get_running_loop()
    obtain: _ThreadedObtain[Any] = _ThreadedObtain(identity)
    try:
        async with asyncio.timeout(timeout_s):
            obtained: Expiring[Any] = await obtain(loop.time() + timeout_s)
    except TimeoutError:
        raise IdentityFailure(f"no answer within {timeout_s:g} s") from None
    return obtained.lifetime_s
