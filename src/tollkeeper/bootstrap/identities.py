"""Finds the identity of a backend: in its settings, in the variables that the provider's own tools
read, or on the machine. What the settings say wins."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from tollkeeper.backends.credentials import CredentialKind, is_header_text
from tollkeeper.backends.identities import (
    ENTRA_AUTHORITY,
    ENTRA_SCOPE,
    GOOGLE_SCOPE,
    AwsContainer,
    AwsIdentity,
    AwsInstance,
    AwsKeys,
    AwsProfile,
    AwsSource,
    AwsWebIdentity,
    EntraApp,
    EntraCertificate,
    EntraFederated,
    EntraIdentity,
    EntraManaged,
    EntraSecret,
    GoogleFile,
    GoogleIdentity,
    GoogleInstance,
    Identity,
    region_in,
)
from tollkeeper.backends.identity.credential import try_identity
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.settings import BackendSettings, SettingsError, shown_variable

_CHECK_TIMEOUT_S = 10.0
_CONTAINER_HOST = "http://169.254.170.2"
_AZURE_MACHINE_PATH = "/metadata/identity/oauth2/token"


def identity_of(
    declared: BackendSettings, environment: Mapping[str, str] | None = None
) -> Identity | None:
    """None where the credential is a key. Raises SettingsError where what is needed is missing."""
    found = _Identities(declared, os.environ if environment is None else environment)
    match CredentialKind(declared.credential):
        case CredentialKind.GOOGLE:
            return found.google()
        case CredentialKind.ENTRA:
            return found.entra()
        case CredentialKind.SIGV4:
            return found.aws()
    return None


def shown_credential(declared: BackendSettings) -> str:
    """The kind of a backend's credential and where it comes from, for an operator: never the secret.
    Raises SettingsError where what is needed is missing."""
    identity = identity_of(declared)
    if identity is not None:
        return f"{declared.credential}: {identity.described}"
    if declared.api_key_env:
        return f"{declared.credential} from {shown_variable(declared.api_key_env)}"
    return f"{declared.credential} from a file" if declared.api_key_file else "no key"


async def check_identity(declared: BackendSettings) -> str:
    """Obtains a token or keys once, and says for how long they are good. Raises SettingsError."""
    identity = identity_of(declared)
    assert identity is not None
    deadline = asyncio.get_running_loop().time() + _CHECK_TIMEOUT_S
    try:
        lifetime_s = await try_identity(identity, deadline=deadline)
    except IdentityFailure as failure:
        raise SettingsError(f"{shown_credential(declared)}: {failure}") from None
    good = "" if lifetime_s is None else f", good for {lifetime_s:.0f} s"
    return f"{shown_credential(declared)}{good}"


class _Identities:
    def __init__(self, declared: BackendSettings, environment: Mapping[str, str]) -> None:
        self._declared = declared
        self._settings = declared.identity
        self._environment = environment

    def google(self) -> GoogleIdentity:
        path = self._settings.file or self._variable("GOOGLE_APPLICATION_CREDENTIALS")
        match self._source(("file", "machine"), "file" if path else "machine"):
            case "file":
                self._require(path, "file", "GOOGLE_APPLICATION_CREDENTIALS")
                return GoogleFile(Path(path), self._settings.scope or GOOGLE_SCOPE)
        host = self._variable("GCE_METADATA_HOST")
        return GoogleInstance(host) if host else GoogleInstance()

    def entra(self) -> EntraIdentity:
        settings = self._settings
        secret = self._secret()
        certificate = settings.file or self._variable("AZURE_CLIENT_CERTIFICATE_PATH")
        token = settings.token_file or self._variable("AZURE_FEDERATED_TOKEN_FILE")
        if settings.file:
            first = "file"
        elif settings.token_file:
            first = "federated"
        elif secret or settings.secret_file:
            first = "environment"
        else:
            first = "file" if certificate else "federated" if token else "machine"
        source = self._source(("environment", "file", "federated", "machine"), first)
        if source == "machine":
            return self._managed()
        app = self._app()
        if source == "file":
            self._require(certificate, "file", "AZURE_CLIENT_CERTIFICATE_PATH")
            return EntraCertificate(app, Path(certificate))
        if source == "federated":
            self._require(token, "token_file", "AZURE_FEDERATED_TOKEN_FILE")
            return EntraFederated(app, Path(token))
        if settings.secret_file:
            return EntraSecret(app, file=Path(settings.secret_file))
        self._require(secret, "secret_env", "AZURE_CLIENT_SECRET")
        if not is_header_text(secret):
            self._fail("secret_env", "the client secret must be printable ASCII without spaces")
        return EntraSecret(app, secret)

    def _secret(self) -> str:
        name = self._settings.secret_env
        if not name:
            return self._variable("AZURE_CLIENT_SECRET")
        found = self._variable(name)
        if not found:
            self._fail("secret_env", f"{shown_variable(name)} is not set")
        return found

    def _app(self) -> EntraApp:
        settings = self._settings
        tenant = settings.tenant or self._variable("AZURE_TENANT_ID")
        client = settings.client or self._variable("AZURE_CLIENT_ID")
        self._require(tenant, "tenant", "AZURE_TENANT_ID")
        self._require(client, "client", "AZURE_CLIENT_ID")
        authority = settings.authority or self._variable("AZURE_AUTHORITY_HOST")
        scope = settings.scope or ENTRA_SCOPE
        return EntraApp(tenant, client, authority or ENTRA_AUTHORITY, scope)

    def _managed(self) -> EntraManaged:
        client = self._settings.client or self._variable("AZURE_CLIENT_ID")
        scope = self._settings.scope or ENTRA_SCOPE
        header = self._variable("IDENTITY_HEADER")
        endpoint = self._variable("IDENTITY_ENDPOINT")
        if header and endpoint:
            return EntraManaged(client, endpoint, header, scope)
        host = self._variable("AZURE_POD_IDENTITY_AUTHORITY_HOST")
        if host:
            return EntraManaged(client, f"{host.rstrip('/')}{_AZURE_MACHINE_PATH}", scope=scope)
        return EntraManaged(client, scope=scope)

    def aws(self) -> AwsIdentity:
        region = self._settings.region or self._variable("AWS_REGION")
        region = region or self._variable("AWS_DEFAULT_REGION")
        hosts = [urlsplit(url).netloc for url in self._declared.urls]
        in_hosts = [region_in(host) for host in hosts]
        if not region and None in in_hosts:
            self._fail("region", "the address names no region, and AWS_REGION is not set")
        region = region or in_hosts[0] or ""
        return AwsIdentity(self._aws_source(in_hosts[0] or region), region)

    def _aws_source(self, region: str) -> AwsSource:
        settings = self._settings
        access, secret = (
            self._variable("AWS_ACCESS_KEY_ID"),
            self._variable("AWS_SECRET_ACCESS_KEY"),
        )
        token = settings.token_file or self._variable("AWS_WEB_IDENTITY_TOKEN_FILE")
        container = self._container_url()
        file = settings.file or self._variable("AWS_SHARED_CREDENTIALS_FILE")
        profile = settings.profile or self._variable("AWS_PROFILE")
        if settings.file or settings.profile:
            first = "file"
        elif settings.token_file:
            first = "federated"
        elif access and secret:
            first = "environment"
        elif token:
            first = "federated"
        elif file or profile or Path(_aws_file()).exists():
            first = "file"
        else:
            first = "container" if container else "machine"
        match self._source(("environment", "file", "federated", "container", "machine"), first):
            case "environment":
                self._require(access, "source", "AWS_ACCESS_KEY_ID")
                self._require(secret, "source", "AWS_SECRET_ACCESS_KEY")
                session = self._variable("AWS_SESSION_TOKEN")
                if not is_header_text(access) or (session and not is_header_text(session)):
                    self._fail("source", "the access key must be printable ASCII without spaces")
                return AwsKeys(access, secret, session)
            case "file":
                return AwsProfile(Path(file or _aws_file()), profile or "default")
            case "federated":
                role = settings.role or self._variable("AWS_ROLE_ARN")
                self._require(token, "token_file", "AWS_WEB_IDENTITY_TOKEN_FILE")
                self._require(role, "role", "AWS_ROLE_ARN")
                return AwsWebIdentity(role, Path(token), self._sts_url(region))
            case "container":
                self._require(container, "source", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
                token_file = self._variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
                return AwsContainer(
                    container,
                    self._variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                    Path(token_file) if token_file else None,
                )
        endpoint = self._variable("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        return AwsInstance(endpoint) if endpoint else AwsInstance()

    def _container_url(self) -> str:
        relative = self._variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        if relative:
            return f"{_CONTAINER_HOST}{relative}"
        return self._variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")

    def _sts_url(self, region: str) -> str:
        end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        return self._variable("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{end}/"

    def _source(self, possible: tuple[str, ...], first: str) -> str:
        chosen = self._settings.source
        if chosen == "auto":
            return first
        if chosen not in possible:
            self._fail("source", f"{self._declared.credential} has {', '.join(possible)}")
        return chosen

    def _variable(self, name: str) -> str:
        return self._environment.get(name, "")

    def _require(self, found: str, setting: str, variable: str) -> None:
        if not found:
            self._fail(setting, f"it is not set, and neither is {variable}")

    def _fail(self, setting: str, reason: str) -> NoReturn:
        at = ("backends", self._declared.name, "identity", setting)
        raise SettingsError(f"{reason}.", at)


def _aws_file() -> str:
    return str(Path("~/.aws/credentials").expanduser())
