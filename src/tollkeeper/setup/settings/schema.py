"""Every setting: name, type, limits, default. docs/configuration.md has a line for each."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tollkeeper.core import conventions
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.policies.trial.rule import THRESHOLD_MAX, THRESHOLD_MIN
from tollkeeper.providers.config import host_and_port, shown_url
from tollkeeper.setup.settings.backends import BackendSettings
from tollkeeper.setup.settings.prices import PriceChanges, PricesSettings
from tollkeeper.setup.settings.section import (
    Host,
    Name,
    Seconds,
    SecretSource,
    Section,
    Source,
    conflicting_setting,
)
from tollkeeper.setup.settings.wording import nearest
from tollkeeper.tenants.people import Role

_SCHEMES = ("postgresql://", "postgres://")
_MALFORMED = (
    "is not a valid PostgreSQL address; in user and password every character other than letters, "
    "digits and -._~ must be percent-encoded"
)


def check_database_url(url: str) -> None:
    """Raises ValueError, without the driver's message, which quotes the address and maybe a password."""
    if not url.startswith(_SCHEMES):
        # Without a scheme it may be a password.
        shown = f"{shown_url(url)!r} " if "://" in url else ""
        raise ValueError(
            f"{shown}must start with postgresql://, or be empty for the embedded PostgreSQL"
        )
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        raise ValueError(_MALFORMED) from None
    host, name = str(parts.get("host") or ""), str(parts.get("dbname") or "")
    ports = str(parts.get("port") or "")
    # With an unencoded / or @, the driver takes a part of the password for a host, port or database name, and
    # would print it.
    if (
        "@" in host
        or ("@" in name and "%40" not in url)
        or not all(port.isdecimal() for port in ports.split(",") if port)
    ):
        raise ValueError(_MALFORMED)


ENV_PREFIX = "TOLLKEEPER_"
Port = Annotated[int, Field(ge=0, le=65535)]
UnreadContent = Literal["images", "audio", "video", "files", "sealed_reasoning", "search_results"]
Modality = Literal["text", "image", "file", "audio", "video"]
BetaFlag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
# As in the Host header, without a port.
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
# The gateway reads these itself.
_REQUEST_HEADERS = frozenset(
    {
        *("authorization", "host", "content-type", "content-length", "content-encoding"),
        *("transfer-encoding", "connection", "upgrade", "expect", "idempotency-key", "traceparent"),
        *(conventions.MESSAGES_VERSION_HEADER, conventions.MESSAGES_BETA_HEADER),
    }
)
# The gateway writes these itself.
_RESPONSE_HEADERS = frozenset(
    {
        *("content-type", "content-length", "content-encoding", "transfer-encoding"),
        *("connection", "keep-alive", "upgrade", "trailer", "date", "cache-control", "allow"),
        *("retry-after", "www-authenticate", "x-request-id", "x-should-retry"),
        "x-accel-buffering",
    }
)


class ServerSettings(Section):
    host: Host = "127.0.0.1"
    port: Port = 8080
    workers: int = Field(default=1, ge=1, le=256)
    # After SIGTERM requests are still accepted for this long, until load balancers have noticed.
    stop_delay_s: float = Field(default=0, ge=0, le=600)
    # Then requests in flight have this long.
    grace_s: Seconds = 20


class OperatorSettings(Section):
    host: Host = "127.0.0.1"
    port: Port = 8081


class SignInSettings(Section):
    """The OpenID Connect provider with which operators sign in to the console."""

    # Empty: only the operator token.
    issuer: str = Field(default="", max_length=500)
    client_id: str = Field(default="", max_length=500)
    # Empty: a public client.
    client_secret: SecretSource = ""
    # Of the ID token; it decides the role.
    role_claim: Name = "groups"
    # By the claim's value.
    roles: dict[Name, Role] = {}

    @model_validator(mode="after")
    def _is_complete(self) -> "SignInSettings":
        if not self.issuer:
            return self
        for name in ("client_id", "roles"):
            if not getattr(self, name):
                raise conflicting_setting(f"needs {name}", "issuer")
        if not _is_safe_url(self.issuer):
            raise conflicting_setting(
                "must start with https://; http:// is allowed only for loopback", "issuer"
            )
        return self


def _is_safe_url(url: str) -> bool:
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        return False
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ConsoleSettings(Section):
    host: Host = "127.0.0.1"
    port: Port = 8082
    # `tollkeeper console --new-token` prints a token and its digest. Empty: each start makes one and prints
    # it.
    token_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$", repr=False)
    # Accepted in the Host header, besides the listening address.
    allowed_hosts: tuple[Name, ...] = ()
    # Their X-Forwarded-For and X-Forwarded-Proto are trusted.
    trusted_proxies: tuple[Name, ...] = ()
    # The certificate and its key. Empty: HTTP.
    tls_files: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), repr=False)
    # For clients, without /v1. Empty: the address of `server`.
    gateway_url: str = ""
    sign_in: SignInSettings = SignInSettings()

    @property
    def is_exposed(self) -> bool:
        """Browsers would send the operator token unencrypted. A trusted proxy is assumed to use HTTPS."""
        return not (self.tls_files or self.trusted_proxies or is_loopback(self.host))

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST_NAME.fullmatch(host):
                raise ValueError(f"{host!r} must be a host name without scheme and port")
        return hosts

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            if proxy != "*":
                ipaddress.ip_network(proxy)  # Its ValueError says what is wrong.
        return proxies

    @field_validator("tls_files")
    @classmethod
    def _are_none_or_two(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        if len(files) not in (0, 2):
            raise ValueError("must be two files: the certificate and its key")
        return files

    @model_validator(mode="after")
    def _names_a_gateway(self) -> "ConsoleSettings":
        """A field's validator would show the value, which may have a password by mistake."""
        problem = _gateway_url_problem(self.gateway_url) if self.gateway_url else ""
        if problem:
            raise conflicting_setting(problem, "gateway_url")
        return self


def _gateway_url_problem(url: str) -> str:
    """Returns "" if nothing is wrong."""
    try:
        host_and_port(url)
    except ValueError as exc:
        return str(exc)
    if "?" in url or "#" in url:
        return f"{shown_url(url)!r} must have no user, query or fragment"
    if url.rstrip("/").endswith("/v1"):
        return f"{url!r} must not end with /v1, because the console appends it"
    return ""


class DatabaseSettings(Section):
    url: str = Field(default="", repr=False)
    data_dir: Path = Path("./.tollkeeper")
    pool_size: int = Field(default=10, ge=2, le=1000)

    @field_validator("url")
    @classmethod
    def _can_be_read(cls, url: str) -> str:
        if url:
            check_database_url(url)
        return url

    @property
    def seen_file(self) -> Path | None:
        """Where this machine's processes record the newest PostgreSQL server. None for the embedded one: it
        has no standby, and an operator may replace it by an empty folder."""
        return self.data_dir / "newest-server.json" if self.url else None


class SecretsSettings(Section):
    # Empty: master.key in database.data_dir, created once.
    master_key: SecretSource = ""


class LogsSettings(Section):
    # A line for each.
    requests: bool = True


class WebhookSettings(Section):
    # It may have a secret. Empty: no webhook.
    url: str = Field(default="", repr=False)
    secret: SecretSource = ""

    @model_validator(mode="after")
    def _is_signed(self) -> "WebhookSettings":
        if self.url and not _is_webhook_url(self.url):
            words = "must be an http:// or https:// address without user, fragment and spaces"
            raise conflicting_setting(words, "url")
        if self.url and not self.secret:
            raise conflicting_setting("needs secret, which signs the alerts", "url")
        if self.secret and not self.url:
            raise conflicting_setting("needs url, to which alerts are posted", "secret")
        return self


def _is_webhook_url(url: str) -> bool:
    try:
        # Unlike a base address, it may have a query.
        host_and_port(url.replace("?", "/"))
    except ValueError:  # The message is not used, because it shows the path, which may be secret.
        return False
    return True


class AlertsSettings(Section):
    # Without one, alerts are only logged.
    webhook: WebhookSettings = WebhookSettings()


_Secrets: TypeAlias = Annotated[
    tuple[Annotated[Source, Field(min_length=1)], ...], Field(max_length=4, repr=False)
]


class PaymentWebhookSecrets(Section):
    """Of the payment provider's webhook: for each of its modes one secret, or two during a rotation. Other
    events are rejected."""

    live: _Secrets = ()
    test: _Secrets = ()


class PaymentsSettings(Section):
    webhook_secrets: PaymentWebhookSecrets = PaymentWebhookSecrets()


class LimitsSettings(Section):
    body_bytes: int = Field(default=33554432, ge=1024, le=1073741824)
    inference_deadline_s: Seconds = 300
    # Of a project without limits of its own.
    requests_per_minute: int = Field(default=6000, ge=1, le=10_000_000)
    concurrency: int = Field(default=256, ge=1, le=1_000_000)


def _checked_usd(amount: str, noun: str) -> str:
    try:
        picousd = picousd_from_usd(amount)
    except InvalidRequest as exc:
        raise ValueError(exc.message) from None
    if picousd < 0:
        raise ValueError(f"{noun} is an amount of 0 USD or more")
    return amount


class LedgerSettings(Section):
    # Then unsettled calls get `unsettled_resolution`. 0: never.
    unsettled_after_hours: int = Field(default=0, ge=0, le=87_600)
    unsettled_resolution: Literal["keep", "settle_hold", "release"] = "keep"
    # How far a balance may fall below zero before calls are refused until `overage clear`. Empty: no limit.
    overage_bound_usd: str = "10"

    @field_validator("overage_bound_usd")
    @classmethod
    def _is_an_amount(cls, amount: str) -> str:
        return amount and _checked_usd(amount, "a bound")


class ActivitySettings(Section):
    retention_days: int = Field(default=30, ge=1, le=36500)


class AuditSettings(Section):
    retention_days: int = Field(default=1095, ge=1, le=36500)


class AuthSettings(Section):
    customer_key_header: str = Field(
        default=conventions.CUSTOMER_KEY_HEADER, pattern=r"^[a-z0-9-]{1,64}$"
    )
    project_key_default_permissions: tuple[str, ...] = conventions.PROJECT_KEY_DEFAULT_PERMISSIONS

    @field_validator("customer_key_header")
    @classmethod
    def _is_not_a_gateway_header(cls, name: str) -> str:
        if name in _REQUEST_HEADERS:
            raise ValueError("the gateway reads this header itself")
        return name

    @field_validator("project_key_default_permissions")
    @classmethod
    def _are_customer_permissions(cls, permissions: tuple[str, ...]) -> tuple[str, ...]:
        for permission in permissions:
            if permission not in PROJECT_KEY_PERMISSIONS:
                allowed = ", ".join(sorted(PROJECT_KEY_PERMISSIONS))
                raise ValueError(
                    f"{permission!r} is not a customer permission"
                    f"{nearest(permission, PROJECT_KEY_PERMISSIONS)}; there are: {allowed}"
                )
        return permissions


class SessionsSettings(Section):
    headers: tuple[HeaderName, ...] = conventions.SESSION_HEADERS


class FirstJudgeSettings(Section):
    """A small model that is asked before the judge."""

    # Empty: none.
    backend: str = Field(default="", max_length=64)
    model: str = Field(default="", max_length=200)
    # Below this and below the policy's threshold, the first judge's answer is no. Otherwise the judge
    # decides.
    settles_below_basis_points: int = Field(default=100, ge=THRESHOLD_MIN, le=THRESHOLD_MAX)

    @model_validator(mode="after")
    def _has_both(self) -> "FirstJudgeSettings":
        if bool(self.backend) != bool(self.model):
            raise ValueError("a first judge needs both a backend and a model")
        return self


class JudgeSettings(Section):
    backend: Name
    model: Name
    first: FirstJudgeSettings = FirstJudgeSettings()
    default_threshold_basis_points: int = Field(
        default=conventions.DEFAULT_THRESHOLD_BASIS_POINTS, ge=THRESHOLD_MIN, le=THRESHOLD_MAX
    )
    # For all verdicts on a request together, and again for those on an answer.
    deadline_s: Seconds = 20
    # A streamed answer is judged each time this much has come. 0: as a whole, before any part is sent.
    segment_characters: int = Field(default=0, ge=0, le=1_000_000)
    # Questions of one process at a time.
    concurrency: int = Field(default=16, ge=1, le=1024)
    # Judge a request while the backend works on it. The client gets nothing before the verdict.
    overlap: bool = False


class PolicySettings(Section):
    # No judge can read these. A request with one is denied if an enforcing policy applies.
    denied_content: tuple[UnreadContent, ...] = ()
    # From the end of the request, shown to the judge with an answer. 0: none.
    answer_context_characters: int = Field(default=2000, ge=0, le=1_000_000)


class ConventionsSettings(Section):
    """Conventions of clients that contradict the interface."""

    accept_provider_specific_fields: bool = False


class ExtensionsSettings(Section):
    """Endpoints and headers that the interface doesn't require."""

    model_listing: bool = False
    key_usage: bool = False
    messages: bool = False
    # A response header with the cost. Empty: none.
    cost_header: str = Field(default="", pattern=r"^[a-z0-9-]{0,64}$")

    @field_validator("cost_header")
    @classmethod
    def _is_not_a_gateway_header(cls, name: str) -> str:
        if name in _RESPONSE_HEADERS:
            raise ValueError("the gateway writes this header itself")
        return name


class EmbeddedSettings(Section):
    enabled: bool = True
    # Empty: the packaged model.
    model_path: str = ""
    # 0: all cores but one.
    threads: int = Field(default=0, ge=0, le=1024)
    # Calls that the engine computes at a time.
    parallel: int = Field(default=4, ge=1, le=64)


class TokenBoundsSettings(Section):
    """The most input tokens, from which holds are computed."""

    # Of one image, file and so on; 0: the whole context. `image` None: the preset's, otherwise the highest of
    # all published model families.
    image: int | None = Field(default=None, ge=0)
    file: int = Field(default=0, ge=0)
    audio: int = Field(default=0, ge=0)
    video: int = Field(default=0, ge=0)
    # That the results of one search add.
    web_search: int = Field(default=0, ge=0)
    # That the model may make unasked. None: by the model's name.
    searches: int | None = Field(default=None, ge=0, le=1000)
    # A call may cost much more than its hold: the model searches, adds context or runs tools by itself, or
    # the prompt has no known limit. None: if it searches by itself.
    unbounded: bool | None = None
    # Of a system prompt that the provider adds. None: by preset or model name.
    hidden_prompt: int | None = Field(default=None, ge=0, le=1_000_000)
    # Without a tokenizer. "bytes": one token for each.
    text: Literal["estimate", "bytes"] = "estimate"


class AlternativeSettings(PricesSettings):
    """Another backend that may serve the model. Without prices it has the model's."""

    backend: Name
    # Empty: the same name as at the model's own backend.
    upstream_model: str = Field(default="", max_length=512)
    # Lower ones first; the model's own backend has 0. None: one more than the alternative before.
    order: int | None = Field(default=None, ge=0, le=1000)
    # Of calls, among the same order. The model's own backend has 1.
    weight: float = Field(default=1, ge=0.000_001, le=1_000_000)


class ModelSettings(PricesSettings):
    id: str = Field(min_length=1, max_length=200)
    backend: Name
    # The backend's name for it.
    upstream_model: str = Field(min_length=1, max_length=512)
    owned_by: str = ""
    name: str = ""
    display_name: str = ""
    created: int = Field(default=0, ge=0)
    context_length: int = Field(ge=1)
    # That a client can ask for. Some models can write more.
    max_output_length: int = Field(ge=1)
    input_modalities: tuple[Modality, ...] = ("text",)
    output_modalities: tuple[Modality, ...] = ("text",)
    quantization: str = ""
    supported_sampling_parameters: tuple[str, ...] = ()
    supported_features: tuple[str, ...] = ()
    sampling_limits: dict[str, Any] = {}
    sampling_limits_revision: str = "1"
    required_checks: tuple[str, ...] = ()
    # False: calls get 503.
    is_ready: bool = True
    price_changes: PriceChanges = ()
    token_bounds: TokenBoundsSettings = Field(default={}, validate_default=True)
    # In USD, for a request that offers this tool of the provider.
    tool_prices: dict[Name, str] = {}
    # Fields that not every backend supports, to the backend's fields.
    options: dict[str, str] = {}
    # Anthropic's protocols and `converse`: who marks what the provider caches, the client ("caller"), the
    # gateway ("5m", "1h") or nobody ("off").
    prompt_caching: PromptCaching = PromptCaching.CALLER
    # Anthropic's protocols: clients' flags that the backend gets.
    beta_flags: tuple[BetaFlag, ...] = Field(default=(), max_length=64)
    alternatives: tuple[AlternativeSettings, ...] = Field(default=(), max_length=16)

    @property
    def backends(self) -> tuple[str, ...]:
        return (self.backend, *(alternative.backend for alternative in self.alternatives))


class Settings(BaseSettings):
    """TOLLKEEPER_SECTION__NAME overrides `name` in `section`. Lists and tables in variables are JSON."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
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
    payments: PaymentsSettings = PaymentsSettings()
    limits: LimitsSettings = LimitsSettings()
    ledger: LedgerSettings = LedgerSettings()
    activity: ActivitySettings = ActivitySettings()
    audit: AuditSettings = AuditSettings()
    auth: AuthSettings = AuthSettings()
    sessions: SessionsSettings = SessionsSettings()
    judge: JudgeSettings | None = None
    policy: PolicySettings = PolicySettings()
    conventions: ConventionsSettings = ConventionsSettings()
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
        """The environment overrides the file, which comes as keyword arguments. Nothing else is read."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _names_fit_together(self) -> "Settings":
        names = _check_unique("backends", "name", [backend.name for backend in self.backends])
        _check_unique("models", "id", [model.id for model in self.models])
        for position, model in enumerate(self.models):
            places: list[tuple[str | int, ...]] = [("backend",)]
            places += [("alternatives", at, "backend") for at in range(len(model.alternatives))]
            for at, (place, name) in enumerate(zip(places, model.backends, strict=True)):
                if name not in names:
                    raise conflicting_setting(_undeclared(name, names), "models", position, *place)
                if name in model.backends[:at]:
                    raise conflicting_setting(
                        f"the model lists the backend {name!r} twice", "models", position, *place
                    )
        if self.judge is not None and self.judge.backend not in names:
            raise conflicting_setting(_undeclared(self.judge.backend, names), "judge", "backend")
        if self.judge is not None and self.judge.first.backend not in ("", *names):
            raise conflicting_setting(
                _undeclared(self.judge.first.backend, names), "judge", "first"
            )
        return self


def _check_unique(section: str, setting: str, names: list[str]) -> list[str]:
    for position, name in enumerate(names):
        if name in names[:position]:
            words = f"two {section} have the same {setting} {name!r}; rename one"
            raise conflicting_setting(words, section, position, setting)
    return names


def _undeclared(name: str, names: list[str]) -> str:
    declared_names = f"; there are: {', '.join(names)}" if names else ""
    return f"the backend {name!r} is not declared in backends{nearest(name, names)}{declared_names}"


def environment_settings() -> dict[str, Any]:
    """In the form of a parsed file."""
    return EnvSettingsSource(Settings)()
