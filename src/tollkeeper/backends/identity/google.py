"""Access tokens of Google: for a service account, a user, a federated identity, or a machine's own
account. The file is read anew for every token, so a key can be rotated without a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tollkeeper.backends.identities import GoogleFile, GoogleIdentity, GoogleInstance
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.files import (
    read_json_file,
    read_token_file,
    text_of,
)
from tollkeeper.backends.identity.jwt import signed_rs256
from tollkeeper.backends.identity.oauth import read_access_token
from tollkeeper.backends.identity.renewal import Expiring
from tollkeeper.backends.identity.token_service import (
    ask,
    check_success,
    post_form,
    require_https,
)

_TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
_ASSERTION_LIFETIME_S = 3600
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name
_METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


async def google_token(
    identity: GoogleIdentity, *, deadline: float, now: Callable[[], float]
) -> Expiring[str]:
    """`now` is in seconds since 1970. Raises IdentityFailure."""
    if isinstance(identity, GoogleInstance):
        url = f"http://{identity.host}{_METADATA_PATH}"
        headers = {"metadata-flavor": "Google"}
        return read_access_token(await ask(url, deadline=deadline, headers=headers))
    document = read_json_file(identity.path)
    match document.get("type"):
        case "service_account":
            return await _service_account(identity, document, deadline, int(now()))
        case "authorized_user":
            return await _user(identity, document, deadline)
        case "external_account":
            return await _federated(identity, document, deadline)
    raise IdentityFailure(
        f"{identity.path} is none of the types service_account, authorized_user and external_account"
    )


async def _service_account(
    identity: GoogleFile, document: dict[str, Any], deadline: float, now: int
) -> Expiring[str]:
    path = identity.path
    url = str(document.get("token_uri") or _TOKEN_URL)
    key_id = document.get("private_key_id")
    assertion = signed_rs256(
        text_of(document, "private_key", path),
        {"kid": key_id} if isinstance(key_id, str) else {},
        {
            "iss": text_of(document, "client_email", path),
            "scope": identity.scope,
            "aud": url,
            "iat": now,
            "exp": now + _ASSERTION_LIFETIME_S,
        },
    )
    fields = {"grant_type": _JWT_GRANT, "assertion": assertion}
    return read_access_token(await post_form(url, fields, deadline=deadline))


async def _user(identity: GoogleFile, document: dict[str, Any], deadline: float) -> Expiring[str]:
    names = ("client_id", "client_secret", "refresh_token")
    fields = {name: text_of(document, name, identity.path) for name in names}
    fields["grant_type"] = "refresh_token"
    url = str(document.get("token_uri") or _TOKEN_URL)
    return read_access_token(await post_form(url, fields, deadline=deadline))


async def _federated(
    identity: GoogleFile, document: dict[str, Any], deadline: float
) -> Expiring[str]:
    """Exchanges the token of another issuer, read from a file, for one of Google's. Where the document
    names a service account, that token is exchanged for one of the account."""
    path = identity.path
    fields = {
        "grant_type": _EXCHANGE_GRANT,
        "audience": text_of(document, "audience", path),
        "scope": identity.scope,
        "requested_token_type": _ACCESS_TOKEN_TYPE,
        "subject_token_type": text_of(document, "subject_token_type", path),
        "subject_token": _subject_token(document, path),
    }
    url = text_of(document, "token_url", path)
    exchanged = read_access_token(await post_form(url, fields, deadline=deadline))
    account_url = document.get("service_account_impersonation_url")
    if not account_url:
        return exchanged
    return await _impersonated(str(account_url), exchanged.value, identity.scope, deadline)


def _subject_token(document: dict[str, Any], path: Path) -> str:
    source = document.get("credential_source")
    file = source.get("file") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(file, str):
        raise IdentityFailure(f"{path} names no file as its credential_source: others are not read")
    found = source.get("format")
    described: dict[str, Any] = found if isinstance(found, dict) else {}
    if described.get("type") == "json":
        name = text_of(described, "subject_token_field_name", path)
        return text_of(read_json_file(Path(file)), name, Path(file))
    return read_token_file(Path(file))


async def _impersonated(url: str, token: str, scope: str, deadline: float) -> Expiring[str]:
    require_https(url)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    body = b'{"scope":["%b"],"lifetime":"3600s"}' % scope.encode("ascii")
    answer = await ask(url, deadline=deadline, method="POST", headers=headers, body=body)
    check_success(answer)
    given = answer.json().get("accessToken")
    if not isinstance(given, str):
        raise IdentityFailure("the token service's answer has no access token")
    return Expiring(given, float(_ASSERTION_LIFETIME_S))
