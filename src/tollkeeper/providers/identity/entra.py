"""Entra access tokens with azure-identity. Imported only for the credential `entra`."""

import time
from pathlib import Path
from typing import Any

from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity import (
    CertificateCredential,
    ClientSecretCredential,
    CredentialUnavailableError,
    DefaultAzureCredential,
)

from tollkeeper.providers.credentials import is_header_text, read_key
from tollkeeper.providers.identities import EntraIdentity
from tollkeeper.providers.identity.failure import IdentityFailure, as_identity_failure, silence
from tollkeeper.providers.identity.renewal import Expiring

silence("azure", "msal", "urllib3")
# `renewal` retries. The token service isn't verified with Microsoft: the operator chose it.
_OPTIONS: dict[str, Any] = {
    "connection_timeout": 5,
    "read_timeout": 5,
    "retry_total": 0,
    "disable_instance_discovery": True,
}


def obtain(identity: EntraIdentity) -> Expiring[str]:
    """Blocks. Reads the secret or certificate each time, so operators can replace the file at run
    time. Raises IdentityFailure."""
    try:
        with _credential(identity) as credential:
            token = credential.get_token(identity.scope)
    except (ClientAuthenticationError, ServiceRequestError, ValueError) as exc:
        raise as_identity_failure(
            exc, local_errors=(CredentialUnavailableError, ServiceRequestError)
        ) from None
    if not is_header_text(token.token):
        raise IdentityFailure("the token service's answer has no access token")
    return Expiring(token.token, token.expires_on - time.time())


def _credential(
    identity: EntraIdentity,
) -> ClientSecretCredential | CertificateCredential | DefaultAzureCredential:
    tenant, client = identity.tenant, identity.client
    if identity.certificate_file:
        return CertificateCredential(tenant, client, identity.certificate_file, **_OPTIONS)
    secret = identity.secret
    if identity.secret_file:
        try:
            secret = read_key(Path(identity.secret_file))
        except ValueError as exc:
            raise IdentityFailure(f"{identity.secret_file}: {exc}") from None
    if secret:
        return ClientSecretCredential(tenant, client, secret, **_OPTIONS)
    client_ids = {"managed_identity_client_id": client, "workload_identity_client_id": client}
    return DefaultAzureCredential(**_OPTIONS, **(client_ids if client else {}))
