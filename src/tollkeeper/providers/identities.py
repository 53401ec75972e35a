"""The gateway's accounts at providers with expiring tokens or signatures instead of a key. Settings
only: `providers/identity` does the work. `description` is for operators and never has the secret."""

import re
from dataclasses import dataclass, field

GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
_REGION = re.compile(r"(?:^|\.)([a-z]{2,4}(?:-[a-z]+){1,2}-[0-9])\.")


@dataclass(frozen=True, slots=True)
class GoogleIdentity:
    # A credentials file of any type. Empty: Application Default Credentials.
    file: str = ""
    scope: str = GOOGLE_SCOPE

    @property
    def description(self) -> str:
        return f"the account in {self.file}" if self.file else "Application Default Credentials"


@dataclass(frozen=True, slots=True)
class EntraIdentity:
    """With a secret or a certificate. Without either, what DefaultAzureCredential finds:
    environment variables, a workload or managed identity, or the Azure CLI."""

    tenant: str = ""
    client: str = ""
    # The secret, or the file with it.
    secret: str = field(default="", repr=False)
    secret_file: str = ""
    # With its private key.
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
    """Found by the AWS library, for signing."""

    # For hosts whose name contains no region.
    region: str
    # Empty: AWS_PROFILE, or the default profile.
    profile: str = ""
    # Replaces ~/.aws/credentials.
    file: str = ""
    # A part of each signature.
    service: str = "bedrock"

    @property
    def description(self) -> str:
        source = (
            f"the profile {self.profile}" if self.profile else "the keys that the AWS library finds"
        )
        return f"{source} in {self.file}" if self.file else source


Identity = GoogleIdentity | EntraIdentity | AwsIdentity


def region_in(host: str) -> str | None:
    region = _REGION.search(host)
    return None if region is None else region[1]
