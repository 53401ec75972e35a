"""Defines identities: the accounts of the gateway at providers that require expiring tokens or
signatures instead of a fixed API key.

The classes only contain settings. `backends/identity` obtains the tokens and signs the requests, with
the library of each provider. The property `description` is for operators: it names the kind and the
source of the identity, but never the secret.
"""

import re
from dataclasses import dataclass, field

GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
_REGION = re.compile(r"(?:^|\.)([a-z]{2,4}(?:-[a-z]+){1,2}-[0-9])\.")


@dataclass(frozen=True, slots=True)
class GoogleIdentity:
    """Represents an account of Google Cloud."""

    # A credentials file of any type. Empty means Application Default Credentials.
    file: str = ""
    scope: str = GOOGLE_SCOPE

    @property
    def description(self) -> str:
        return f"the account in {self.file}" if self.file else "Application Default Credentials"


@dataclass(frozen=True, slots=True)
class EntraIdentity:
    """Represents an application in Microsoft Entra with a secret or a certificate. Without either,
    represents the account that DefaultAzureCredential finds: in environment variables, as a workload
    identity, as a managed identity, or in the Azure CLI."""

    tenant: str = ""
    client: str = ""
    # The secret itself, or the file that contains it.
    secret: str = field(default="", repr=False)
    secret_file: str = ""
    # A file with the certificate and its private key.
    certificate_file: str = ""
    scope: str = ENTRA_SCOPE

    @property
    def description(self) -> str:
        if self.certificate_file:
            return f"the client certificate of {self.client} in {self.certificate_file}"
        if self.secret or self.secret_file:
            return f"the client secret of {self.client}"
        return "DefaultAzureCredential"


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Represents the AWS keys that the AWS library finds. The gateway signs requests with them."""

    # The AWS region for requests to a host whose name contains no region.
    region: str
    # The name of a profile. Empty means the profile in AWS_PROFILE, or the default profile.
    profile: str = ""
    # A file with profiles that replaces ~/.aws/credentials.
    file: str = ""
    # The name of the AWS service, which is part of each signature.
    service: str = "bedrock"

    @property
    def description(self) -> str:
        source = (
            f"the profile {self.profile}" if self.profile else "the keys that the AWS library finds"
        )
        return f"{source} in {self.file}" if self.file else source


Identity = GoogleIdentity | EntraIdentity | AwsIdentity


def region_in(host: str) -> str | None:
    """Returns the AWS region in a host name; None if the name contains no region."""
    region = _REGION.search(host)
    return None if region is None else region[1]
