"""Defines the gateway's identities at providers, whose tokens expire or that sign requests.

These are values only. `backends/identity` obtains the tokens and keys with the provider's own
library. `described` is what an operator may see: the kind and the origin, never the secret.
"""

import re
from dataclasses import dataclass, field

GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
_REGION = re.compile(r"(?:^|\.)([a-z]{2,4}(?:-[a-z]+){1,2}-[0-9])\.")


@dataclass(frozen=True, slots=True)
class GoogleIdentity:
    # A credentials file of any type; empty means Application Default Credentials.
    file: str = ""
    scope: str = GOOGLE_SCOPE

    @property
    def described(self) -> str:
        return f"the account in {self.file}" if self.file else "Application Default Credentials"


@dataclass(frozen=True, slots=True)
class EntraIdentity:
    """Represents an application with a secret or a certificate; without either, the result of
    DefaultAzureCredential: the environment, a workload identity, a managed identity, the Azure
    CLI."""

    tenant: str = ""
    client: str = ""
    # The secret itself, or the file that contains it.
    secret: str = field(default="", repr=False)
    secret_file: str = ""
    # A file with the certificate and its private key.
    certificate_file: str = ""
    scope: str = ENTRA_SCOPE

    @property
    def described(self) -> str:
        if self.certificate_file:
            return f"the client certificate of {self.client} in {self.certificate_file}"
        if self.secret or self.secret_file:
            return f"the client secret of {self.client}"
        return "DefaultAzureCredential"


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Signs requests with the keys that AWS's own search finds."""

    # Used if the host of a request does not contain its region.
    region: str
    # Empty means the profile in AWS_PROFILE, or the default one.
    profile: str = ""
    # A file with profiles in place of ~/.aws/credentials.
    file: str = ""
    service: str = "bedrock"

    @property
    def described(self) -> str:
        place = f" in {self.file}" if self.file else ""
        return f"the profile {self.profile}{place}" if self.profile else f"AWS's own search{place}"


Identity = GoogleIdentity | EntraIdentity | AwsIdentity


def region_in(host: str) -> str | None:
    """Returns the AWS region in a host name."""
    found = _REGION.search(host)
    return None if found is None else found[1]
