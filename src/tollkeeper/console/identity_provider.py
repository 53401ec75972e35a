"""Signs users in with an OpenID Connect provider, by the authorization code flow with PKCE, state
and nonce.

A sign-in has two steps, `begin` and `finish`. In between, the browser shows the provider's pages.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx2
import structlog
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from tollkeeper.console.places import Places
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import PermissionDenied, Unavailable
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.setup.settings.schema import SignInSettings
from tollkeeper.tenants.people import Person, Role

# The deadline for all requests to the provider in one step.
_DEADLINE_S = 10
# The maximum size of a response, which is far larger than any document of a real provider.
_ANSWER_BYTES_MAX = 1 << 20
_CLOCK_SKEW_S = 60
# The provider's metadata is cached for `_METADATA_CACHED_S`. After a failure to read it, the next attempt
# is made after `_RETRY_AFTER_FAILURE_S`.
_METADATA_CACHED_S = 3600
_RETRY_AFTER_FAILURE_S = 5
# The maximum number of codes that are redeemed at the same time.
_REDEEMING_MAX = 16
# The maximum length of a user's subject (the user's id at the provider) and of a user's name.
_TEXT_MAX = 255
# The claim that contains the id of the organization, for users with the role `organization`.
_ORGANIZATION = "organization"
# The accepted signature algorithms. All are asymmetric: only the provider can create a signature.
_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_DOWN_MESSAGE = (
    "The identity provider does not answer properly. Try again, or use the operator token."
)
_INVALID_MESSAGE = "The identity provider's answer is not valid for this console. Sign in again."
# The exceptions that a missing or malformed response from the provider causes.
_BAD_RESPONSE_ERRORS = (
    *(TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, LookupError, ValueError),
    *(TypeError, AttributeError, RecursionError),
)
_log = structlog.get_logger("tollkeeper.console")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """Contains the state of a sign-in between its two steps. The browser stores this state
    encrypted, in a cookie."""

    state: str
    nonce: str
    verifier: str
    # The page that the user requested.
    next_page: str
    began_at: int


class NoRole(PermissionDenied):
    """Signals a user whom the provider knows, but who has no role: the settings assign none, or the
    role `organization` lacks an existing organization."""

    def __init__(self, subject: str) -> None:
        super().__init__("You are signed in at the identity provider, but have no role here.")
        self.subject = subject


class _Client(AsyncOAuth2Client):  # type: ignore[misc]
    """Rejects responses that are too large. Rejects compressed responses too, because a small
    compressed body can become large."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        answer = await super().send(request, **{**options, "stream": True})
        try:
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ValueError(f"{request.url} is compressed")
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > _ANSWER_BYTES_MAX:
                    raise ValueError(f"{request.url} has more than {_ANSWER_BYTES_MAX} bytes")
        finally:
            await answer.aclose()
        return httpx2.Response(
            answer.status_code, headers=answer.headers, content=bytes(body), request=request
        )


class IdentityProvider:
    def __init__(self, settings: SignInSettings, secret: str, clock: Clock) -> None:
        self._settings = settings
        self._secret = secret
        self._clock = clock
        self._metadata: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._read_at = 0
        self._failed_at = 0
        self._reading = asyncio.Lock()
        self._redeeming = Places()
        # All clients share it, because reading the authorities' certificates takes 50 ms.
        self._tls = httpx2.create_ssl_context()

    async def begin(self, next_page: str, callback: str) -> tuple[str, PendingSignIn]:
        """Returns the URL of the provider's sign-in page, and the state for the browser. After the
        sign-in, the provider redirects the browser to `callback`. Raises Unavailable if the
        provider fails."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = PendingSignIn(state, nonce, verifier, next_page, self._clock())
        async with self._step(callback) as client, asyncio.timeout(_DEADLINE_S):
            metadata = await self._current_metadata(client)
            client.scope = " ".join(_scopes(metadata, (self._settings.role_claim, _ORGANIZATION)))
            address, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=pending.state,
                nonce=pending.nonce,
                code_verifier=pending.verifier,
            )
        return address, pending

    async def finish(
        self, code: str, pending: PendingSignIn, callback: str, network: Hashable
    ) -> Person:
        """Returns the user to whom the provider issued the code. Raises Unavailable if the provider
        fails, and PermissionDenied if its response is invalid or the user has no role."""
        place = self._redeeming.take(network, places_max=_REDEEMING_MAX, deadline_s=_DEADLINE_S)
        async with self._step(callback) as client, place:
            metadata = await self._current_metadata(client)
            client.token_endpoint_auth_method = self._auth_method(metadata)
            token = await client.fetch_token(
                metadata["token_endpoint"],
                grant_type="authorization_code",
                code=code,
                code_verifier=pending.verifier,
            )
            claims = await self._claims(client, token, pending.nonce)
        return self._person(claims)

    @asynccontextmanager
    async def _step(self, callback: str) -> AsyncIterator[Any]:
        """Provides an HTTP client for a step. Logs every error of the provider, and converts it: a
        refusal or an invalid ID token to PermissionDenied, other errors to Unavailable."""
        try:
            async with _Client(
                self._settings.client_id,
                self._secret or None,
                redirect_uri=callback,
                code_challenge_method="S256",
                timeout=_DEADLINE_S,
                headers={"Accept-Encoding": "identity"},
                verify=self._tls,
            ) as client:
                yield client
        except (OAuthError, JoseError) as exc:
            _log.warning("a sign-in was refused", reason=str(exc))
            raise PermissionDenied(_INVALID_MESSAGE) from exc
        except _BAD_RESPONSE_ERRORS as exc:
            _log.warning("the identity provider failed", reason=repr(exc))
            raise Unavailable(_DOWN_MESSAGE) from exc

    def _auth_method(self, metadata: Mapping[str, Any]) -> str:
        if not self._secret:
            return "none"
        supported = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"

    async def _current_metadata(self, client: Any) -> dict[str, Any]:
        """Returns the provider's discovery document, which is cached. Concurrent sign-ins share one
        request for the document. Raises ValueError if the document names another issuer, or an
        endpoint with another scheme, and Unavailable shortly after a failed attempt."""
        async with self._reading:
            now = self._clock()
            if self._metadata and now - self._read_at < _METADATA_CACHED_S:
                return self._metadata
            if now - self._failed_at < _RETRY_AFTER_FAILURE_S:
                raise Unavailable(_DOWN_MESSAGE)
            # The attempt counts as failed until the metadata is read and checked.
            self._failed_at = now
            issuer = self._settings.issuer
            metadata = await _read_json(
                client, f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if metadata.get("issuer") != issuer:
                raise ValueError(f"the metadata names the issuer {metadata.get('issuer')!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not str(metadata[name]).startswith(issuer.partition("://")[0] + "://"):
                    raise ValueError(f"{name} has another scheme than the issuer")
            self._metadata, self._keys, self._read_at, self._failed_at = metadata, None, now, 0
            return metadata

    async def _claims(self, client: Any, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """Returns the verified claims in the ID token. If the cached keys cannot verify the token,
        reads the provider's keys again, because the provider may have rotated its keys."""
        metadata, id_token = self._metadata, str(token["id_token"])
        announced = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        registry = JWSRegistry(
            algorithms=sorted(_ALGORITHMS.intersection(announced)), strict_check_header=False
        )
        keys = self._keys
        try:
            if keys is None:
                keys = self._keys = await self._read_keys(client)
            decoded = jwt.decode(id_token, keys, registry=registry)
        except JoseError:
            self._keys = await self._read_keys(client)
            decoded = jwt.decode(id_token, self._keys, registry=registry)
        settings = self._settings
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "value": settings.issuer},
                "aud": {"essential": True, "value": settings.client_id},
            },
            {
                "nonce": nonce,
                "client_id": settings.client_id,
                "access_token": token.get("access_token"),
            },
        )
        claims.validate(now=self._clock(), leeway=_CLOCK_SKEW_S)
        return dict(claims)

    async def _read_keys(self, client: Any) -> KeySet:
        key_set: Any = await _read_json(client, self._metadata["jwks_uri"])
        return KeySet.import_key_set(key_set)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        subject = claims["sub"]
        if (
            not isinstance(subject, str)
            or not 0 < len(subject) <= _TEXT_MAX
            or (not subject.isprintable())
        ):
            raise PermissionDenied(_INVALID_MESSAGE)
        names = (claims.get(name) for name in ("name", "preferred_username", "email", "sub"))
        name = next(name for name in names if isinstance(name, str) and name.strip())
        settings = self._settings
        values = _claim(claims, settings.role_claim)
        roles = [
            settings.roles[value]
            for value in (values if isinstance(values, list) else [values])
            if isinstance(value, str) and value in settings.roles
        ]
        if not roles:
            raise NoRole(subject)
        role, organization = max(roles, key=lambda candidate: candidate.rank), None
        if role is Role.ORGANIZATION:
            try:
                organization = OrganizationId(UUID(_claim(claims, _ORGANIZATION)))
            except (TypeError, ValueError, AttributeError):
                raise NoRole(subject) from None
        return Person(subject, _printable(name)[:_TEXT_MAX], role, organization)


def _scopes(metadata: Mapping[str, Any], claims: tuple[str, ...]) -> list[str]:
    """Returns the scopes to request. Some providers send a claim only if the scope with the claim's
    name is requested. Their metadata lists such scopes."""
    published = metadata.get("scopes_supported")
    supported = published if isinstance(published, list) else []
    return ["openid", "profile", "email", *(name for name in claims if name in supported)]


async def _read_json(client: Any, address: str) -> dict[str, Any]:
    answer = await client.request("GET", address, withhold_token=True)
    answer.raise_for_status()
    document = json.loads(answer.content)
    if not isinstance(document, dict):
        raise ValueError(f"{address} is not a JSON object")  # noqa: TRY004 - the provider's fault
    return document


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Finds a claim by its name, or by a dotted path into nested objects."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).strip()
