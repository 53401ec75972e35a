"""The settings of an identity: who the gateway is towards a provider, where that is not a key."""

from typing import Literal

from pydantic import Field

from tollkeeper.settings.section import SecretFile, SecretVariable, Section


class IdentitySettings(Section):
    """For the credentials `google`, `entra` and `sigv4`. What is empty comes from the variables that
    the provider's own tools read, or from the machine."""

    # Where the identity comes from; "auto": the first place that has one.
    source: Literal["auto", "environment", "file", "federated", "container", "machine"] = "auto"
    # Google's key file, Entra's certificate with its key (PEM), or the file of AWS's profiles.
    file: SecretFile = ""
    # A token of somebody else's, for which the provider gives one of its own.
    token_file: SecretFile = ""
    # What tokens are good for.
    scope: str = Field(default="", max_length=1024)
    # Of Entra: the directory, the application, its secret, and who gives tokens.
    tenant: str = Field(default="", max_length=256)
    client: str = Field(default="", max_length=256)
    secret_env: SecretVariable = ""
    secret_file: SecretFile = ""
    authority: str = Field(default="", max_length=1024)
    # Of AWS: the profile in its file, the region where the address does not name it, and the role
    # that is taken with a token.
    profile: str = Field(default="", max_length=256)
    region: str = Field(default="", pattern=r"^([a-z0-9-]{1,32})?$")
    role: str = Field(default="", max_length=2048)
