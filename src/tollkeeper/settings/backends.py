"""Defines the settings of a backend. A preset, the name of a known provider or server, sets the defaults
of most settings."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tollkeeper.backends.config import WireProtocol, shown_url
from tollkeeper.backends.credentials import CredentialKind
from tollkeeper.backends.presets import PRESETS
from tollkeeper.settings.section import (
    Name,
    Seconds,
    SecretFile,
    SecretSource,
    SecretVariable,
    Section,
    conflicting_setting,
)
from tollkeeper.settings.wording import nearest


class IdentitySettings(Section):
    """Configures the gateway's identity at a provider, for the credentials `google`, `entra` and
    `sigv4`. If a setting except `scope` is empty, the gateway or the provider's own library searches for
    the value: in environment variables, in files and on the machine."""

    # Google: the credentials file. Entra: a PEM file with the certificate and its key. AWS: a file with
    # profiles.
    file: SecretFile = ""
    # The scope of the tokens that the gateway requests. Empty: the provider's usual scope.
    scope: str = Field(default="", max_length=1024)
    # Entra: the directory, the application and its secret.
    tenant: str = Field(default="", max_length=256)
    client: str = Field(default="", max_length=256)
    secret: SecretSource = ""
    # AWS: the profile, and the region if the address does not contain it.
    profile: str = Field(default="", max_length=256)
    region: str = Field(default="", pattern=r"^([a-z0-9-]{1,32})?$")


# The credentials with which the gateway has an identity at the provider instead of a fixed key. The
# gateway obtains tokens for this identity, or signs requests.
IDENTITY_CREDENTIALS = frozenset(
    {CredentialKind.GOOGLE, CredentialKind.ENTRA, CredentialKind.SIGV4}
)
_BEDROCK_PROTOCOLS = frozenset({WireProtocol.CONVERSE, WireProtocol.BEDROCK_MESSAGES})
BackendHeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
# The server's name for a field of chat requests, "" to omit the field, or False to reject requests that
# have the field.
FieldName = Annotated[str, Field(max_length=120)] | Literal[False]
# The entry of `fields` with the server's name for the salt of its prefix cache.
CACHE_SALT = "cache_salt"
# Printable ASCII.
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4096)]
# Request headers that the gateway writes itself.
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
    # The name of a known provider or server, which determines the defaults of the settings below.
    preset: str = ""
    protocol: WireProtocol = WireProtocol.CHAT
    # The base address of each replica.
    urls: tuple[str, ...] = ()
    api_key_env: SecretVariable = ""
    api_key_file: SecretFile = ""
    # The header that contains the key, or the kind of identity that the gateway uses instead of a key.
    credential: CredentialKind = CredentialKind.BEARER
    identity: IdentitySettings = Field(default={}, validate_default=True)
    # Additional headers in every request to the backend. A header value may be a secret.
    headers: dict[BackendHeaderName, HeaderValue] = Field(default={}, repr=False)
    connect_timeout_s: Seconds = 5
    # The longest pause within an answer.
    idle_timeout_s: Seconds = 60
    # The number of attempts on other replicas after the first attempt fails. If the backend may
    # charge a failed attempt, there is no further attempt.
    retries: int = Field(default=1, ge=0, le=10)
    # A PEM file with the only certificates that are trusted for https replicas. Empty: the system's
    # certificates are trusted.
    tls_ca_file: str = ""
    # Renames, omits or rejects fields of chat requests. If `cache_salt` has a name, the gateway sends a
    # different salt for each project, so that projects do not share the server's prefix cache.
    # Otherwise projects share the cache.
    fields: dict[Name, FieldName] = {}
    # False: the gateway sends a call for `n` completions as `n` separate requests.
    native_n: bool = True
    # The path at which the server counts the tokens of a prompt. Empty: the path of the preset or
    # protocol. "none": the server does not count tokens.
    tokenize_path: str = ""
    # The highest number of connections from one process to one replica.
    connections: int = Field(default=1024, ge=1, le=1_000_000)
    # Whether the backend counts cached tokens in addition to `prompt_tokens`, even if its reports do not
    # show it.
    cache_adds_to_prompt: bool = False
    # Whether a request may contain addresses of media that the backend fetches.
    allow_remote_media: bool = True

    @property
    def cache_salt_field(self) -> str:
        return self.fields.get(CACHE_SALT) or ""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, declared: Any) -> Any:
        """Adds the preset's values for settings that the operator did not set."""
        preset = PRESETS.get(str(declared.get("preset"))) if isinstance(declared, dict) else None
        if preset is None:
            return declared
        defaults = preset.settings()
        filled = {**defaults, **declared}
        if isinstance(declared.get("fields"), dict):
            filled["fields"] = {**defaults["fields"], **declared["fields"]}
        # A key that the operator sets replaces the identity of the preset.
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
