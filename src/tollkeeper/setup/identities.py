"""Builds a backend's identity (the gateway's account at a provider that takes tokens or signatures instead of
a key), and checks that its library is installed."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NoReturn
from urllib.parse import urlsplit

from tollkeeper.providers.credentials import CredentialKind, is_header_text
from tollkeeper.providers.identities import (
    ENTRA_SCOPE,
    GOOGLE_SCOPE,
    AwsIdentity,
    EntraIdentity,
    GoogleIdentity,
    Identity,
    region_in,
)
from tollkeeper.providers.identity.credential import try_identity
from tollkeeper.providers.identity.failure import IdentityFailure
from tollkeeper.setup.settings import BackendSettings, SettingsError, shown_variable

_CHECK_TIMEOUT_S = 10.0
# The package, the modules to look for, and the extra that installs it.
_LIBRARIES = {
    CredentialKind.GOOGLE: ("google-auth", ("google.auth", "requests"), "google"),
    CredentialKind.ENTRA: ("azure-identity", ("azure.identity",), "azure"),
    CredentialKind.SIGV4: ("botocore", ("botocore",), "aws"),
}


def identity_of(
    declared: BackendSettings, environment: Mapping[str, str] | None = None
) -> Identity | None:
    """None if the backend uses a key. Doesn't import the library. Raises SettingsError if a setting or the
    library is missing."""
    kind = declared.credential
    if kind not in _LIBRARIES:
        return None
    package, modules, extra = _LIBRARIES[kind]
    if not all(map(_is_installed, modules)):
        _fail(declared, "credential", f"needs {package}: pip install 'tollkeeper[{extra}]'")
    environment = os.environ if environment is None else environment
    settings = declared.identity
    match kind:
        case CredentialKind.GOOGLE:
            return GoogleIdentity(settings.file, settings.scope or GOOGLE_SCOPE)
        case CredentialKind.ENTRA:
            return _entra(declared, environment)
    return _aws(declared, environment)


def shown_credential(declared: BackendSettings) -> str:
    """Without the secret. Raises SettingsError if a setting or the library is missing."""
    identity = identity_of(declared)
    if identity is not None:
        return f"{declared.credential}: {identity.description}"
    if declared.api_key_env:
        return f"{declared.credential} from {shown_variable(declared.api_key_env)}"
    return f"{declared.credential} from a file" if declared.api_key_file else "no key"


async def check_identity(declared: BackendSettings) -> str:
    """Obtains a token or temporary keys once, and describes the credential with its lifetime. Raises
    SettingsError if that fails."""
    identity = identity_of(declared)
    assert identity is not None
    try:
        lifetime_s = await try_identity(identity, timeout_s=_CHECK_TIMEOUT_S)
    except IdentityFailure as failure:
        raise SettingsError(f"{shown_credential(declared)}: {failure}") from None
    lifetime = "" if lifetime_s is None else f", good for {lifetime_s:.0f} s"
    return f"{shown_credential(declared)}{lifetime}"


def _entra(declared: BackendSettings, environment: Mapping[str, str]) -> EntraIdentity:
    settings = declared.identity
    scope = settings.scope or ENTRA_SCOPE
    if not (settings.secret or settings.file):
        return EntraIdentity(client=settings.client, scope=scope)
    tenant = settings.tenant or environment.get("AZURE_TENANT_ID", "")
    client = settings.client or environment.get("AZURE_CLIENT_ID", "")
    for setting, value, variable in (
        ("tenant", tenant, "AZURE_TENANT_ID"),
        ("client", client, "AZURE_CLIENT_ID"),
    ):
        if not value:
            _fail(declared, f"identity.{setting}", f"it is not set, and neither is {variable}")
    kind, _, name = settings.secret.partition(":")
    if kind != "env":
        return EntraIdentity(tenant, client, "", name, settings.file, scope)
    secret = environment.get(name, "")
    if not secret:
        _fail(declared, "identity.secret", f"{shown_variable(name)} is not set")
    if not is_header_text(secret):
        reason = "the client secret must be printable ASCII without spaces"
        _fail(declared, "identity.secret", reason)
    return EntraIdentity(tenant, client, secret, "", settings.file, scope)


def _aws(declared: BackendSettings, environment: Mapping[str, str]) -> AwsIdentity:
    settings = declared.identity
    region = settings.region or environment.get("AWS_REGION", "")
    region = region or environment.get("AWS_DEFAULT_REGION", "")
    in_hosts = [region_in(urlsplit(url).netloc) for url in declared.urls]
    if not region and None in in_hosts:
        reason = "the address names no region, and AWS_REGION is not set"
        _fail(declared, "identity.region", reason)
    return AwsIdentity(region or in_hosts[0] or "", settings.profile, settings.file)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def _fail(declared: BackendSettings, setting: str, reason: str) -> NoReturn:
    raise SettingsError(f"{reason}.", ("backends", declared.name, *setting.split(".")))
