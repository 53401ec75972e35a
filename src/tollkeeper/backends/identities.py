"""Who the gateway is towards a provider: identities whose tokens expire or that sign requests.

These are values only: where a secret lies, and what is known of the service that gives tokens for
it. `backends/identity` obtains the tokens. `described` is what an operator may see: the kind and the
place, never the secret.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
ENTRA_AUTHORITY = "https://login.microsoftonline.com"
_REGION = re.compile(r"(?:^|\.)([a-z]{2,4}(?:-[a-z]+){1,2}-[0-9])\.")


@dataclass(frozen=True, slots=True)
class GoogleFile:
    """A file of Google's: the key of a service account, a user's refresh token (`authorized_user`)
    or the description of a federated identity (`external_account`)."""

    path: Path
    scope: str = GOOGLE_SCOPE

    @property
    def described(self) -> str:
        return f"an account of Google's in {self.path}"


@dataclass(frozen=True, slots=True)
class GoogleInstance:
    """The service account of the machine, by its metadata server."""

    host: str = "metadata.google.internal"

    @property
    def described(self) -> str:
        return "the service account of this machine"


@dataclass(frozen=True, slots=True)
class EntraApp:
    """An application of Entra. Its token is asked for at `{authority}/{tenant}`."""

    tenant: str
    client: str
    authority: str = ENTRA_AUTHORITY
    scope: str = ENTRA_SCOPE


@dataclass(frozen=True, slots=True)
class EntraSecret:
    app: EntraApp
    # The secret itself, or the file that holds it.
    secret: str | None = field(default=None, repr=False)
    file: Path | None = None

    @property
    def described(self) -> str:
        return f"the client secret of {self.app.client}"


@dataclass(frozen=True, slots=True)
class EntraCertificate:
    """A certificate with its private key, both in one file (PEM)."""

    app: EntraApp
    file: Path

    @property
    def described(self) -> str:
        return f"the client certificate of {self.app.client} in {self.file}"


@dataclass(frozen=True, slots=True)
class EntraFederated:
    """A workload identity: somebody else's token, in a file that is kept fresh."""

    app: EntraApp
    file: Path

    @property
    def described(self) -> str:
        return f"the workload identity of {self.app.client} by {self.file}"


@dataclass(frozen=True, slots=True)
class EntraManaged:
    """The managed identity of the machine; of several the one that `client` names."""

    client: str = ""
    endpoint: str = "http://169.254.169.254/metadata/identity/oauth2/token"
    # What an app service wants to see; empty: the endpoint is that of a virtual machine.
    header: str = field(default="", repr=False)
    scope: str = ENTRA_SCOPE

    @property
    def described(self) -> str:
        return "the managed identity of this machine"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Keys that stay the same as long as the process runs."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @property
    def described(self) -> str:
        return "access keys from the environment"


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """Keys in a file of profiles, which is read again when it has changed."""

    file: Path
    profile: str = "default"

    @property
    def described(self) -> str:
        return f"access keys of the profile {self.profile} in {self.file}"


@dataclass(frozen=True, slots=True)
class AwsWebIdentity:
    """A role that is taken with somebody else's token, in a file that is kept fresh."""

    role: str
    file: Path
    sts_url: str

    @property
    def described(self) -> str:
        return f"the role {self.role} by {self.file}"


@dataclass(frozen=True, slots=True)
class AwsContainer:
    """The role of the container, by the endpoint that its platform names."""

    url: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    @property
    def described(self) -> str:
        return "the role of this container"


@dataclass(frozen=True, slots=True)
class AwsInstance:
    """The role of the machine, by its metadata service."""

    endpoint: str = "http://169.254.169.254"

    @property
    def described(self) -> str:
        return "the role of this machine"


AwsSource = AwsKeys | AwsProfile | AwsWebIdentity | AwsContainer | AwsInstance


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Whose keys sign the requests, and for which service."""

    source: AwsSource
    # Where the host of a request does not name its region.
    region: str
    service: str = "bedrock"

    @property
    def described(self) -> str:
        return self.source.described


GoogleIdentity = GoogleFile | GoogleInstance
EntraIdentity = EntraSecret | EntraCertificate | EntraFederated | EntraManaged
Identity = GoogleIdentity | EntraIdentity | AwsIdentity


def region_in(host: str) -> str | None:
    """The region of AWS that a host names."""
    found = _REGION.search(host)
    return None if found is None else found[1]
