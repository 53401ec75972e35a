"""Access tokens of Entra: for an application, by a secret, a certificate or a federated token, and
for the managed identity of a machine. Files are read anew for every token."""

import uuid
from collections.abc import Callable
from urllib.parse import quote

from tollkeeper.backends.identities import (
    EntraApp,
    EntraCertificate,
    EntraFederated,
    EntraIdentity,
    EntraManaged,
    EntraSecret,
)
from tollkeeper.backends.identity.files import read_secret_file, read_token_file
from tollkeeper.backends.identity.jwt import signed_ps256
from tollkeeper.backends.identity.oauth import read_access_token
from tollkeeper.backends.identity.renewal import Expiring
from tollkeeper.backends.identity.token_service import ask, post_form

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_LIFETIME_S = 600
_MACHINE_VERSION = "2018-02-01"
_APP_SERVICE_VERSION = "2019-08-01"
_ALL_OF = "/.default"


async def entra_token(
    identity: EntraIdentity, *, deadline: float, now: Callable[[], float]
) -> Expiring[str]:
    """`now` is in seconds since 1970. Raises IdentityFailure."""
    match identity:
        case EntraManaged():
            return await _managed(identity, deadline)
        case EntraSecret(app=app):
            secret = identity.secret
            if secret is None:
                assert identity.file is not None
                secret = read_token_file(identity.file)
            proof = {"client_secret": secret}
        case EntraCertificate(app=app, file=file):
            claims = _claims(app, int(now()))
            proof = _asserted(signed_ps256(read_secret_file(file), claims))
        case EntraFederated(app=app, file=file):
            proof = _asserted(read_token_file(file))
    fields = {
        "grant_type": "client_credentials",
        "client_id": app.client,
        "scope": app.scope,
        **proof,
    }
    return read_access_token(await post_form(_token_url(app), fields, deadline=deadline))


async def _managed(identity: EntraManaged, deadline: float) -> Expiring[str]:
    is_app_service = bool(identity.header)
    version = _APP_SERVICE_VERSION if is_app_service else _MACHINE_VERSION
    resource = quote(identity.scope.removesuffix(_ALL_OF), safe="")
    url = f"{identity.endpoint}?api-version={version}&resource={resource}"
    if identity.client:
        url += f"&client_id={quote(identity.client, safe='')}"
    headers = {"x-identity-header": identity.header} if is_app_service else {"metadata": "true"}
    return read_access_token(await ask(url, deadline=deadline, headers=headers))


def _token_url(app: EntraApp) -> str:
    return f"{app.authority.rstrip('/')}/{quote(app.tenant, safe='')}/oauth2/v2.0/token"


def _asserted(assertion: str) -> dict[str, str]:
    return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}


def _claims(app: EntraApp, now: int) -> dict[str, str | int]:
    return {
        "aud": _token_url(app),
        "iss": app.client,
        "sub": app.client,
        "jti": str(uuid.uuid4()),
        "nbf": now,
        "exp": now + _ASSERTION_LIFETIME_S,
    }
