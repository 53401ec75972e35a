"""The settings of a backend. A preset, the name of a known provider or server, sets the defaults of most."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tollkeeper.providers.config import WireProtocol, shown_url
from tollkeeper.providers.credentials import CredentialKind
from tollkeeper.providers.presets import PRESETS
from tollkeeper.setup.settings.section import (
    Name,
    Seconds,
    SecretFile,
    SecretSource,
    SecretVariable,
    Section,
    conflicting_setting,
)
from tollkeeper.setup.settings.wording import nearest


class IdentitySettings(Section):
    """The gateway's identity at a provider, for `google`, `entra` and `sigv4`. The gateway or the provider's
    library looks for whatever is empty, except `scope`, in variables, in files and on the machine."""

    # Google: the credentials. Entra: a PEM file with certificate and key. AWS: profiles.
    file: SecretFile = ""
    # Of the tokens. Empty: the provider's usual one.
    scope: str = Field(default="", max_length=1024)
    # Entra: the directory, the application and its secret.
    tenant: str = Field(default="", max_length=256)
    client: str = Field(default="", max_length=256)
    secret: SecretSource = ""
    # AWS; the region if the address doesn't have it.
    profile: str = Field(default="", max_length=256)
    region: str = Field(default="", pattern=r"^([a-z0-9-]{1,32})?$")


# With these the gateway obtains tokens or signs requests, instead of sending a fixed key.
IDENTITY_CREDENTIALS = frozenset(
    {CredentialKind.GOOGLE, CredentialKind.ENTRA, CredentialKind.SIGV4}
)
_BEDROCK_PROTOCOLS = frozenset({WireProtocol.CONVERSE, WireProtocol.BEDROCK_MESSAGES})
BackendHeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
# The server's name for a field of chat requests, "" to omit it, False to reject requests that have it.
FieldName = Annotated[str, Field(max_length=120)] | Literal[False]
# In `fields`: the server's name for the salt of its prefix cache.
CACHE_SALT = "cache_salt"
# Printable ASCII.
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4096)]
# The gateway writes these itself.
_GATEWAY_HEADERS = frozenset(
    {
        *("host", "user-agent", "content-type", "content-length", "accept", "accept-encoding"),
        *("connection", "transfer-encoding", "expect", "upgrade", "te", "trailer"),
        *("authorization", "x-api-key", "api-key", "x-goog-api-key"),
        *("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"),
    }
)


class BackendSettings(Section):
    name: Name
    # "embedded": the engine, which tollkeeper starts. "openai": a server with any `protocol`.
    kind: Literal["embedded", "openai"] = "openai"
    # It sets the defaults of what follows.
    preset: str = ""
    protocol: WireProtocol = WireProtocol.CHAT
    # Of each replica.
    urls: tuple[str, ...] = ()
    api_key_env: SecretVariable = ""
    api_key_file: SecretFile = ""
    # The key's header, or the kind of identity.
    credential: CredentialKind = CredentialKind.BEARER
    identity: IdentitySettings = Field(default={}, validate_default=True)
    # In every request. A value may be a secret.
    headers: dict[BackendHeaderName, HeaderValue] = Field(default={}, repr=False)
    connect_timeout_s: Seconds = 5
    # Within an answer.
    idle_timeout_s: Seconds = 60
    # On other replicas, unless the backend may charge the failed attempt.
    retries: int = Field(default=1, ge=0, le=10)
    # A PEM file with the only trusted certificates. Empty: the system's.
    tls_ca_file: str = ""
    # Renames, omits or rejects fields of chat requests. With a name for `cache_salt`, each project gets its
    # own salt; otherwise projects share the server's prefix cache.
    fields: dict[Name, FieldName] = {}
    # False: `n` completions are `n` requests.
    native_n: bool = True
    # Where the server counts tokens. Empty: the preset's or protocol's path. "none": it doesn't.
    tokenize_path: str = ""
    # From one process to one replica.
    connections: int = Field(default=1024, ge=1, le=1_000_000)
    # Cached tokens come on top of `prompt_tokens`, even if reports don't show it.
    cache_adds_to_prompt: bool = False
    # Requests may have addresses of media that the backend fetches.
    allow_remote_media: bool = True

    @property
    def cache_salt_field(self) -> str:
        return self.fields.get(CACHE_SALT) or ""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, declared: Any) -> Any:
        preset = PRESETS.get(str(declared.get("preset"))) if isinstance(declared, dict) else None
        if preset is None:
            return declared
        defaults = preset.settings()
        filled = {**defaults, **declared}
        if isinstance(declared.get("fields"), dict):
            filled["fields"] = {**defaults["fields"], **declared["fields"]}
        # The operator's key replaces the preset's identity.
        has_key = bool({"api_key_env", "api_key_file"} & set(declared))
        if has_key and "credential" not in declared and preset.credential in IDENTITY_CREDENTIALS:
            filled["credential"] = "bearer"
        is_identity = filled["credential"] in IDENTITY_CREDENTIALS
        if preset.key_env and not has_key and not is_identity:
            filled["api_key_env"] = preset.key_env
        return filled

    @field_validator("preset")
    @classmethod
    def _is_known(cls, preset: str) -> str:
        if preset and preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(
                f"there is no such preset{nearest(preset, PRESETS)}; there are: {known}"
            )
        return preset

    @field_validator("urls")
    @classmethod
    def _are_http_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{shown_url(url)!r} must start with http:// or https://")
        return urls

    @field_validator("headers")
    @classmethod
    def _are_not_gateway_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if name in _GATEWAY_HEADERS:
                raise ValueError(f"{name} is written by the gateway itself")
        return headers

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "BackendSettings":
        if self.kind == "openai" and not self.urls:
            form = PRESETS[self.preset].address_form if self.preset else ""
            shown = f", of the form {form}" if form else ""
            raise conflicting_setting(
                f"a backend of kind 'openai' needs at least one url{shown}", "urls"
            )
        if self.kind == "embedded" and self.preset:
            raise conflicting_setting(
                "a backend of kind 'embedded' has no preset; remove it", "preset"
            )
        if self.kind == "embedded" and self.urls:
            raise conflicting_setting(
                "a backend of kind 'embedded' has no urls, because tollkeeper starts it; remove them",
                "urls",
            )
        if self.kind == "embedded" and self.protocol is not WireProtocol.CHAT:
            raise conflicting_setting("a backend of kind 'embedded' speaks 'chat' only", "protocol")
        if self.protocol in _BEDROCK_PROTOCOLS and any(
            url.rstrip("/").endswith("/openai/v1") for url in self.urls
        ):
            raise conflicting_setting(
                f"the OpenAI-compatible address does not support {self.protocol}; use the preset "
                "bedrock-openai for this address",
                "protocol",
            )
        if self.cache_adds_to_prompt and self.protocol is not WireProtocol.CHAT:
            raise conflicting_setting(
                "only the reports of protocol 'chat' leave this open", "cache_adds_to_prompt"
            )
        if self.tls_ca_file and not any(url.startswith("https://") for url in self.urls):
            raise conflicting_setting("none of the urls begins with https://", "tls_ca_file")
        if self.api_key_env and self.api_key_file:
            raise conflicting_setting(
                "api_key_env and api_key_file cannot both be set; remove one", "api_key_file"
            )
        self._fits_its_credential()
        return self

    def _fits_its_credential(self) -> None:
        is_identity = self.credential in IDENTITY_CREDENTIALS
        if is_identity and (self.api_key_env or self.api_key_file):
            raise conflicting_setting(
                f"{self.credential} has no api_key_env or api_key_file", "credential"
            )
        if not is_identity and self.identity != IdentitySettings():
            raise conflicting_setting(
                f"only the credentials {', '.join(sorted(IDENTITY_CREDENTIALS))} have an identity",
                "identity",
            )
