"""The settings of an identity: who the gateway is towards a provider, if that is not a key."""

from pydantic import Field

from tollkeeper.settings.section import SecretFile, SecretVariable, Section


class IdentitySettings(Section):
    """For the credentials `google`, `entra` and `sigv4`. The provider's own library searches for
    what is empty: in its variables, its files and on the machine."""

    # Google's credentials file, Entra's certificate with its key (PEM), or a file with AWS profiles.
    file: SecretFile = ""
    # What tokens are good for.
    scope: str = Field(default="", max_length=1024)
    # Entra: the directory, the application and its secret.
    tenant: str = Field(default="", max_length=256)
    client: str = Field(default="", max_length=256)
    secret_env: SecretVariable = ""
    secret_file: SecretFile = ""
    # AWS: the profile, and the region if the address does not name it.
    profile: str = Field(default="", max_length=256)
    region: str = Field(default="", pattern=r"^([a-z0-9-]{1,32})?$")
