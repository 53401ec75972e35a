"""Google access tokens with google-auth. Imported only for the credential `google`."""

import functools
import warnings
from datetime import UTC, datetime
from typing import Any

import google.auth
import requests
from google.auth import exceptions
from google.auth.transport.requests import Request

from tollkeeper.providers.credentials import is_header_text
from tollkeeper.providers.identities import GoogleIdentity
from tollkeeper.providers.identity.failure import IdentityFailure, as_identity_failure, silence
from tollkeeper.providers.identity.renewal import Expiring

silence("google", "urllib3")
_REQUEST_TIMEOUT_S = 5
# Their messages contain no text from the token service.
_LOCAL = (exceptions.DefaultCredentialsError, exceptions.TransportError, exceptions.MalformedError)


def obtain(identity: GoogleIdentity) -> Expiring[str]:
    """Blocks. Reads the credentials file each time, so operators can replace it at run time. Raises
    IdentityFailure."""
    with requests.Session() as session:
        request: Any = functools.partial(Request(session), timeout=_REQUEST_TIMEOUT_S)
        try:
            credentials = _loaded(identity, request)
            credentials.refresh(request)
        except (exceptions.GoogleAuthError, ValueError) as exc:
            raise as_identity_failure(exc, local_errors=_LOCAL) from None
    if not is_header_text(credentials.token or "") or credentials.expiry is None:
        raise IdentityFailure("the token service's answer has no access token that expires")
    remaining = credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
    return Expiring(credentials.token, remaining.total_seconds())


def _loaded(identity: GoogleIdentity, request: Any) -> Any:
    scopes = [identity.scope]
    if not identity.file:
        return google.auth.default(scopes=scopes, request=request)[0]
    with warnings.catch_warnings():
        # About credentials files from untrusted sources. This one is the operator's.
        warnings.simplefilter("ignore", DeprecationWarning)
        load: Any = google.auth.load_credentials_from_file
        return load(identity.file, scopes, request=request)[0]
