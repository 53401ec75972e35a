"""Every setting: its name, type, bounds and default. docs/configuration.md has a line for each."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tollkeeper.backends.config import shown_url
from tollkeeper.backends.presets import PRESETS
from tollkeeper.domain import conventions
from tollkeeper.domain.access import CUSTOMER_PERMISSIONS
from tollkeeper.domain.catalog import DEFAULT_TOKEN_BOUNDS
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.domain.trial import THRESHOLD_MAX, THRESHOLD_MIN
from tollkeeper.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.settings.database_url import check_database_url
from tollkeeper.settings.prices import PriceChanges, PricesSettings
from tollkeeper.settings.section import Section

Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
# The name of an environment variable that holds a secret. Not shown where it is no name: it may be
# the secret itself.
SecretVariable = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$", repr=False)]
SecretFile = Annotated[str, Field(repr=False)]
CredentialName = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key"]
HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
# Printable ASCII.
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4096)]
# Headers that the gateway writes itself.
_OWN_HEADERS = frozenset(
    {
        *("host", "user-agent", "content-type", "content-length", "accept", "accept-encoding"),
        *("connection", "transfer-encoding", "expect", "upgrade", "te", "trailer"),
        *("authorization", "x-api-key", "api-key", "x-goog-api-key"),
    }
)
Unread = Literal["allow", "deny"]
Modality = Literal["text", "image", "file", "audio", "video"]


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: Port = 8080
    workers: int = Field(default=1, ge=1, le=256)
    grace_s: Seconds = 20
    header_timeout_s: Seconds = 10
    header_bytes: int = Field(default=16384, ge=1024, le=1048576)
    body_timeout_s: Seconds = 60
    write_timeout_s: Seconds = 60
    keep_alive_s: Seconds = 75
    # Open connections of one worker. Beyond them, new ones are refused.
    connections: int = Field(default=10_000, ge=1, le=1_000_000)


class OperatorSettings(Section):
    host: str = "127.0.0.1"
    port: Port = 8081


class ConsoleSettings(Section):
    host: str = "127.0.0.1"
    port: Port = 8082
    # `tollkeeper console --new-token` prints a token and this digest of it. Empty: each start makes
    # a token and prints it.
    token_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$", repr=False)
    session_s: Seconds = 28_800
    # Names in the Host header beside the address that is listened on.
    allowed_hosts: tuple[Name, ...] = ()
    # Addresses whose X-Forwarded-For and X-Forwarded-Proto are believed.
    trusted_proxies: tuple[Name, ...] = ()
    tls_certificate_file: str = ""
    tls_key_file: SecretFile = ""

    @model_validator(mode="after")
    def _has_both_files(self) -> "ConsoleSettings":
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file go together")
        return self


class DatabaseSettings(Section):
    url: str = Field(default="", repr=False)
    data_dir: Path = Path("./.tollkeeper")
    pool_size: int = Field(default=10, ge=2, le=1000)
    pool_timeout_s: Seconds = 5
    statement_timeout_s: Seconds = 10

    @field_validator("url")
    @classmethod
    def _can_be_read(cls, url: str) -> str:
        if url:
            check_database_url(url)
        return url


class SecretsSettings(Section):
    # Secrets come by environment or file reference only. Empty: a file in database.data_dir.
    master_key_file: SecretFile = ""
    master_key_env: SecretVariable = ""


class LogsSettings(Section):
    # "auto": JSON, and plain lines for people under `tollkeeper demo`.
    format: Literal["auto", "json", "text"] = "auto"
    # One line for each request.
    requests: bool = True


class AlertsSettings(Section):
    # Empty: alerts are only logged.
    webhook_url: str = Field(default="", repr=False)
    webhook_secret_env: SecretVariable = ""
    webhook_secret_file: SecretFile = ""
    interval_s: Seconds = 60

    @model_validator(mode="after")
    def _is_signed(self) -> "AlertsSettings":
        if self.webhook_url and not self.webhook_url.startswith(("http://", "https://")):
            raise ValueError("webhook_url must start with http:// or https://")
        if self.webhook_secret_env and self.webhook_secret_file:
            raise ValueError("webhook_secret_env and webhook_secret_file cannot both be set")
        if self.webhook_url and not (self.webhook_secret_env or self.webhook_secret_file):
            raise ValueError(
                "webhook_url needs webhook_secret_env or webhook_secret_file, to sign with"
            )
        return self


class LimitsSettings(Section):
    body_bytes: int = Field(default=33554432, ge=1024, le=1073741824)
    # Of the arrays and objects of one body, together.
    body_elements: int = Field(default=100_000, ge=100, le=100_000_000)
    # Of all requests under way in one process, and of one key in it. One body is always allowed.
    bodies_bytes: int = Field(default=536870912, ge=1024, le=1 << 40)
    key_bodies_bytes: int = Field(default=134217728, ge=1024, le=1 << 40)
    inference_deadline_s: Seconds = 300
    requests_per_minute: int = Field(default=6000, ge=1, le=10_000_000)
    concurrency: int = Field(default=256, ge=1, le=1_000_000)
    # Calls in progress in one process, of all organizations.
    calls: int = Field(default=4096, ge=1, le=1_000_000)
    # A caller has left: how long the rest of its answer is still read, and for how many at once.
    drain_s: float = Field(default=10, ge=0, le=3600)
    drains: int = Field(default=64, ge=0, le=100_000)


class LedgerSettings(Section):
    lease_s: Seconds = 15
    # What nobody has resolved so many hours after it became unsettled; 0: it stays.
    unsettled_after_hours: int = Field(default=0, ge=0, le=87_600)
    unsettled_resolution: Literal["keep", "settle_hold", "release"] = "keep"
    # How far an organization's balance may fall below zero before its calls are stopped until an
    # operator clears it. Empty: there is no bound.
    overage_bound_usd: str = "10"

    @field_validator("overage_bound_usd")
    @classmethod
    def _is_an_amount(cls, amount: str) -> str:
        if amount:
            try:
                picousd = picousd_from_usd(amount)
            except InvalidRequest as exc:
                raise ValueError(exc.message) from None
            if picousd < 0:
                raise ValueError("a bound is an amount of 0 USD or more")
        return amount


class ActivitySettings(Section):
    retention_days: int = Field(default=30, ge=1, le=36500)


class AuthSettings(Section):
    customer_key_header: str = Field(
        default=conventions.CUSTOMER_KEY_HEADER, pattern=r"^[a-z0-9-]{1,64}$"
    )
    project_key_default_permissions: tuple[str, ...] = conventions.PROJECT_KEY_DEFAULT_PERMISSIONS

    @field_validator("project_key_default_permissions")
    @classmethod
    def _are_customer_permissions(cls, permissions: tuple[str, ...]) -> tuple[str, ...]:
        for permission in permissions:
            if permission not in CUSTOMER_PERMISSIONS:
                allowed = ", ".join(sorted(CUSTOMER_PERMISSIONS))
                raise ValueError(
                    f"{permission!r} is not a customer permission; there are: {allowed}"
                )
        return permissions


class SessionsSettings(Section):
    headers: tuple[str, ...] = conventions.SESSION_HEADERS


class MessagesSettings(Section):
    # Published names of the server tools that the interface names in a spelling of its own.
    web_tool_aliases: tuple[Name, ...] = conventions.MESSAGES_WEB_TOOL_ALIASES


class JudgeSettings(Section):
    backend: Name
    model: Name
    default_threshold_basis_points: int = Field(
        default=conventions.DEFAULT_THRESHOLD_BASIS_POINTS, ge=THRESHOLD_MIN, le=THRESHOLD_MAX
    )
    deadline_s: Seconds = 20
    segment_characters: int = Field(default=0, ge=0, le=1_000_000)
    # Questions put to the judge at once by one process, and how much text one question may carry.
    concurrency: int = Field(default=16, ge=1, le=1024)
    window_characters: int = Field(default=4000, ge=100, le=1_000_000)
    # Requests are judged beside the backend's work; nothing leaves before the verdict.
    overlap: bool = False


class PolicySettings(Section):
    # Requests under an enforcing policy with content that no judge reads.
    unreadable_images: Unread = "allow"
    unreadable_audio: Unread = "allow"
    unreadable_video: Unread = "allow"
    unreadable_files: Unread = "allow"
    unreadable_sealed_reasoning: Unread = "allow"


class ExtensionsSettings(Section):
    model_listing: bool = False


class EmbeddedSettings(Section):
    enabled: bool = True
    model_path: str = ""
    threads: int = Field(default=0, ge=0, le=1024)
    parallel: int = Field(default=4, ge=1, le=64)
    # Of each call that it computes; what models on it declare must fit in.
    context_length: int = Field(default=PACKAGED_MODEL.context_length, ge=256, le=1_048_576)


BillColumn = Literal[
    "day",
    "model",
    "requests",
    "input_tokens",
    "uncached_input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost",
]


class BackendSettings(Section):
    name: Name
    kind: Literal["embedded", "openai"] = "openai"
    # What is known of a provider or server: the defaults of what follows.
    preset: str = ""
    protocol: Literal["chat", "responses", "messages", "vertex_messages"] = "chat"
    urls: tuple[str, ...] = ()
    api_key_env: SecretVariable = ""
    api_key_file: SecretFile = ""
    # The header that carries the key.
    credential: CredentialName = "bearer"
    # Further headers of every request to the backend. A value may be a secret.
    headers: dict[HeaderName, HeaderValue] = Field(default={}, repr=False)
    connect_timeout_s: Seconds = 5
    idle_timeout_s: Seconds = 60
    retries: int = Field(default=1, ge=0, le=10)
    # Replicas with https are trusted by this file alone; empty: by what the system trusts.
    tls_ca_file: str = ""
    # Of the chat protocol: the field that bounds the output, whether streams are asked for their
    # usage, and fields that the server does not have, has by another name, or does not need.
    output_bound: Literal["caller", "max_tokens", "max_completion_tokens"] = "caller"
    include_usage: bool = True
    refused_fields: tuple[Name, ...] = ()
    renamed_fields: dict[Name, Name] = {}
    omitted_fields: tuple[Name, ...] = ()
    native_n: bool = True
    # Parts of one call that run at once where the gateway fans `n` out.
    fan_out: int = Field(default=16, ge=1, le=128)
    # Who counts tokens: "auto" is the provider of the Messages protocol, or a tokenize_path.
    tokenizer: Literal["auto", "none", "vllm", "llama_cpp", "messages"] = "auto"
    tokenize_path: str = ""
    # A call waits no longer than five seconds, however long a count may take.
    tokenize_timeout_s: float = Field(default=2, gt=0, le=5)
    # To each replica, from each process.
    connections: int = Field(default=1024, ge=1, le=1_000_000)
    idle_connections: int = Field(default=256, ge=0, le=1_000_000)
    # Calls that wait for a connection while all are in use; one organization has a quarter of them.
    waiting_calls: int = Field(default=1024, ge=1, le=1_000_000)
    # Below the five seconds after which common model servers close an idle connection: a request
    # written into a connection that is just being closed could not be told from one that ran.
    keep_alive_s: Seconds = 4
    # The largest answer that is no stream, and the largest record of a stream. 0: 1 MiB, and under
    # `responses` 16 MiB, where a record may hold the whole result.
    answer_bytes: int = Field(default=67108864, ge=1024, le=1073741824)
    record_bytes: int = Field(default=0, ge=0, le=1073741824)
    # Failures in a row after which a replica is left alone, for how long at first and at most.
    failures_to_eject: int = Field(default=3, ge=1, le=1_000_000)
    ejection_s: Seconds = 1
    ejection_max_s: Seconds = 10
    # Of how many organizations the failures must be, where so many use the backend.
    organizations_to_eject: int = Field(default=2, ge=1, le=64)
    # The field by which the backend keeps prefix caches apart, such as vLLM's `cache_salt`. Every
    # project has a salt of its own, unless the cache is shared on purpose.
    cache_salt_field: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,63})?$")
    cache_shared: bool = False
    # Whether the backend may be given addresses of media that it has to fetch.
    allow_remote_media: bool = True
    # How the provider's exported bill calls its columns, for `ledger reconcile`.
    bill_columns: dict[BillColumn, str] = {}
    # Our model, and how the bill calls it; others have their `upstream_model`.
    bill_models: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _begin_with_preset(cls, declared: Any) -> Any:
        """Fills in what the preset knows and the operator has not set."""
        preset = PRESETS.get(str(declared.get("preset"))) if isinstance(declared, dict) else None
        if preset is None:
            return declared
        filled = {**preset.settings(), **declared}
        if preset.key_env and not {"api_key_env", "api_key_file"} & set(declared):
            filled["api_key_env"] = preset.key_env
        return filled

    @field_validator("preset")
    @classmethod
    def _is_known(cls, preset: str) -> str:
        if preset and preset not in PRESETS:
            raise ValueError(f"there is no such preset; there are: {', '.join(PRESETS)}")
        return preset

    @field_validator("urls")
    @classmethod
    def _speak_http(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{shown_url(url)!r} must start with http:// or https://")
        return urls

    @field_validator("headers")
    @classmethod
    def _are_not_our_own(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if name in _OWN_HEADERS:
                raise ValueError(f"{name} is written by the gateway itself")
        return headers

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "BackendSettings":
        if self.kind == "openai" and not self.urls:
            form = PRESETS[self.preset].address_form if self.preset else ""
            shown = f", of the form {form}" if form else ""
            raise ValueError(f"a backend of kind 'openai' needs at least one url in urls{shown}")
        if self.kind == "embedded" and self.preset:
            raise ValueError("preset: a backend of kind 'embedded' has none")
        if self.kind == "embedded" and self.urls:
            raise ValueError("a backend of kind 'embedded' has no urls: tollkeeper starts it")
        if self.kind == "embedded" and self.protocol != "chat":
            raise ValueError("protocol: a backend of kind 'embedded' speaks 'chat' only")
        if self.tls_ca_file and not any(url.startswith("https://") for url in self.urls):
            raise ValueError("tls_ca_file: none of the urls begins with https://")
        if self.ejection_s > self.ejection_max_s:
            raise ValueError("ejection_s must not be more than ejection_max_s")
        if self.api_key_env and self.api_key_file:
            raise ValueError("api_key_env and api_key_file cannot both be set")
        return self


class ModelSettings(PricesSettings):
    id: str = Field(min_length=1, max_length=200)
    backend: Name
    upstream_model: str = Field(min_length=1, max_length=512)
    owned_by: str = ""
    name: str = ""
    display_name: str = ""
    created: int = Field(default=0, ge=0)
    context_length: int = Field(ge=1)
    # A request may ask for less than some models write: its own bound is the interface's.
    max_output_length: int = Field(ge=1)
    input_modalities: tuple[Modality, ...] = ("text",)
    output_modalities: tuple[Modality, ...] = ("text",)
    quantization: str = ""
    supported_sampling_parameters: tuple[str, ...] = ()
    supported_features: tuple[str, ...] = ()
    sampling_limits: dict[str, Any] = {}
    sampling_limits_revision: str = "1"
    required_checks: tuple[str, ...] = ()
    is_ready: bool = True
    price_changes: PriceChanges = ()
    # Bounds of input tokens, for holds; 0 stands for the whole context.
    # None: that of the backend's preset, else the largest that any published family has.
    tokens_per_image: int | None = Field(default=None, ge=0)
    tokens_per_file: int = Field(default=0, ge=0)
    tokens_per_audio: int = Field(default=0, ge=0)
    tokens_per_video: int = Field(default=0, ge=0)
    tokens_per_web_search: int = Field(default=0, ge=0)
    template_tokens: int = Field(default=DEFAULT_TOKEN_BOUNDS.template, ge=0)
    tool_tokens: int = Field(default=DEFAULT_TOKEN_BOUNDS.tools, ge=0)
    options: dict[str, str] = {}
    # On the Messages protocol: who marks what is cached, and how the model is asked to reason.
    prompt_caching: Literal["off", "caller", "5m", "1h"] = "caller"
    thinking_style: Literal["adaptive", "budget"] = "adaptive"


class Settings(BaseSettings):
    """The whole configuration. Environment: TOLLKEEPER_SECTION__NAME, lists and tables as JSON."""

    model_config = SettingsConfigDict(
        env_prefix="TOLLKEEPER_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    server: ServerSettings = ServerSettings()
    operator: OperatorSettings = OperatorSettings()
    console: ConsoleSettings = ConsoleSettings()
    database: DatabaseSettings = DatabaseSettings()
    secrets: SecretsSettings = SecretsSettings()
    logs: LogsSettings = LogsSettings()
    alerts: AlertsSettings = AlertsSettings()
    limits: LimitsSettings = LimitsSettings()
    ledger: LedgerSettings = LedgerSettings()
    activity: ActivitySettings = ActivitySettings()
    auth: AuthSettings = AuthSettings()
    sessions: SessionsSettings = SessionsSettings()
    messages: MessagesSettings = MessagesSettings()
    judge: JudgeSettings | None = None
    policy: PolicySettings = PolicySettings()
    extensions: ExtensionsSettings = ExtensionsSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    backends: tuple[BackendSettings, ...] = ()
    models: tuple[ModelSettings, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, which arrives as arguments; nothing else is read."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _names_fit_together(self) -> "Settings":
        names = [backend.name for backend in self.backends]
        if len(set(names)) != len(names):
            raise ValueError("backends: two backends have the same name")
        ids = [model.id for model in self.models]
        if len(set(ids)) != len(ids):
            raise ValueError("models: two models have the same id")
        for model in self.models:
            if model.backend not in names:
                raise ValueError(
                    f"models: {model.id!r} names the backend {model.backend!r}, which is not declared"
                )
        if self.judge is not None and self.judge.backend not in names:
            raise ValueError(f"judge.backend: {self.judge.backend!r} is not declared in backends")
        return self
