"""Credentials (`backends/credentials`) of identities: a bearer token, or a signature of each request."""

import time
from collections.abc import Callable

import structlog

from tollkeeper.backends.credentials import (
    CredentialKind,
    OutgoingRequest,
    key_header,
    version_of,
)
from tollkeeper.backends.identities import (
    AwsIdentity,
    AwsProfile,
    EntraIdentity,
    GoogleFile,
    GoogleIdentity,
    GoogleInstance,
    Identity,
    region_in,
)
from tollkeeper.backends.identity.aws import aws_keys, read_profile
from tollkeeper.backends.identity.entra import entra_token
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.google import google_token
from tollkeeper.backends.identity.renewal import Expiring, RenewalTimes, Renewed
from tollkeeper.backends.identity.sigv4 import SignedRequest, SigningKeys, signing_headers
from tollkeeper.domain.errors import Unavailable

_log = structlog.get_logger("tollkeeper.backends")
_DEFAULT_TIMES = RenewalTimes()


class BearerToken:
    """A token that expires, in the header of a bearer."""

    def __init__(
        self,
        identity: GoogleIdentity | EntraIdentity,
        *,
        times: RenewalTimes = _DEFAULT_TIMES,
        now: Callable[[], float] = time.time,
    ) -> None:
        async def obtain(deadline: float) -> Expiring[str]:
            return await _token(identity, deadline, now)

        self._token = Renewed(obtain, described=identity.described, times=times)

    def headers_at_once(self) -> None:
        """A token may have to be waited for."""

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


class KeysInProfile:
    """Keys in a file of profiles, which is read again before the next call after it has changed. While
    it cannot be read, as in the middle of a rotation, the last keys stay in use."""

    def __init__(self, source: AwsProfile) -> None:
        self._source = source
        self._version: tuple[int, ...] | None = None
        self._present: SigningKeys | None = None
        self._previous: SigningKeys | None = None

    @property
    def values(self) -> tuple[SigningKeys, ...]:
        return tuple(keys for keys in (self._present, self._previous) if keys is not None)

    async def get(self, *, deadline: float) -> SigningKeys:
        version = version_of(self._source.file)
        if version != self._version:
            self._version = version
            self._read_again()
        if self._present is None:
            raise Unavailable("The gateway's credential for the backend cannot be read.")
        return self._present

    def doubt(self) -> None:
        """The file says what is right."""

    def start(self) -> None:
        """Nothing runs in the background."""

    async def close(self) -> None:
        """Nothing runs in the background."""

    def _read_again(self) -> None:
        try:
            keys = read_profile(self._source)
        except IdentityFailure as failure:
            _log.warning("credential kept", identity=self._source.described, reason=str(failure))
            return
        if keys != self._present:
            self._previous, self._present = self._present, keys


class Signature:
    """Signs each request, with keys that may expire."""

    def __init__(
        self,
        identity: AwsIdentity,
        *,
        times: RenewalTimes = _DEFAULT_TIMES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._region = identity.region
        # By host: replicas may be in several regions.
        self._regions: dict[str, str] = {}
        self._service = identity.service
        self._now = now
        source = identity.source

        async def obtain(deadline: float) -> Expiring[SigningKeys]:
            return await aws_keys(source, deadline=deadline, now=now)

        self._keys: KeysInProfile | Renewed[SigningKeys]
        if isinstance(source, AwsProfile):
            self._keys = KeysInProfile(source)
        else:
            self._keys = Renewed(obtain, described=identity.described, times=times)

    def headers_at_once(self) -> None:
        """A signature covers its request."""

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        keys = await self._keys.get(deadline=deadline)
        host = request.host
        region = self._regions.get(host)
        if region is None:
            region = self._regions[host] = region_in(host) or self._region
        covered = SignedRequest("POST", request.path, {"host": host}, request.body)
        added = signing_headers(
            keys, covered, region=region, service=self._service, now=self._now()
        )
        return "".join(f"{name}: {value}\r\n" for name, value in added.items()).encode("ascii")

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


async def try_identity(identity: Identity, *, deadline: float) -> float | None:
    """Obtains a token or keys once. Returns for how many seconds they are good; None: they do not
    expire. Raises IdentityFailure."""
    if isinstance(identity, AwsIdentity):
        keys = await aws_keys(identity.source, deadline=deadline, now=time.time)
        return keys.lifetime_s
    return (await _token(identity, deadline, time.time)).lifetime_s


async def _token(
    identity: GoogleIdentity | EntraIdentity, deadline: float, now: Callable[[], float]
) -> Expiring[str]:
    if isinstance(identity, GoogleFile | GoogleInstance):
        return await google_token(identity, deadline=deadline, now=now)
    return await entra_token(identity, deadline=deadline, now=now)
