"""The only file that names concrete classes: from settings to services."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tollkeeper.backends.absent import AbsentBackend
from tollkeeper.backends.config import BackendConfig, Tokenizer
from tollkeeper.backends.engine_address import EngineAddress
from tollkeeper.backends.fan_out import FanOutBackend
from tollkeeper.backends.port import Backend
from tollkeeper.backends.routing import RoutedBackend
from tollkeeper.domain.catalog import Catalog, Model, pricing_from_declared
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.services.activity import Activity
from tollkeeper.services.admin_keys import AdminKeys
from tollkeeper.services.admission import Admission
from tollkeeper.services.authentication import Authentication
from tollkeeper.services.billing import Billing
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.services.costs import Costs
from tollkeeper.services.idempotency import Idempotency
from tollkeeper.services.inference import Inference, InferenceLimits
from tollkeeper.services.isolation import Isolation
from tollkeeper.services.key_use import KeyUse
from tollkeeper.services.ledger import Ledger
from tollkeeper.services.models import CurrentCatalog, Models
from tollkeeper.services.organizations import Organizations
from tollkeeper.services.policies import Policies
from tollkeeper.services.project_keys import ProjectKeys
from tollkeeper.services.projects import Projects
from tollkeeper.services.reasoning_seal import ReasoningSeal
from tollkeeper.services.reconciliation import Reconciliation
from tollkeeper.services.recovery import Lease, Recovery
from tollkeeper.services.token_counting import TokenCounting
from tollkeeper.services.upkeep import Upkeep
from tollkeeper.services.vault import MASTER_BYTES_MIN, Vault
from tollkeeper.settings import BackendSettings, ModelSettings, Settings, SettingsError
from tollkeeper.storage.database import Database
from tollkeeper.storage.embedded_postgres import EmbeddedPostgres
from tollkeeper.storage.ledger import ProjectLimits
from tollkeeper.storage.ledger_store import LedgerStore

# Parts of one fanned-out call that run at once on a backend that is not ours.
_FAN_OUT = 16
# What a policy without a threshold of its own is shown with where no judge is configured.
_THRESHOLD_WITHOUT_JUDGE = 5000


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """What the HTTP face needs to know of the settings."""

    body_bytes_max: int
    body_timeout_s: float
    customer_key_header: str
    session_headers: tuple[str, ...]
    # GET /v1/models is served, which the interface does not show.
    model_listing: bool


@dataclass(frozen=True, slots=True)
class Services:
    """Every use case, ready to be called."""

    clock: Clock
    http: HttpConventions
    database: Database
    authentication: Authentication
    organizations: Organizations
    projects: Projects
    project_keys: ProjectKeys
    admin_keys: AdminKeys
    policies: Policies
    models: Models
    costs: Costs
    billing: Billing
    reconciliation: Reconciliation
    recovery: Recovery
    activity: Activity
    upkeep: Upkeep
    catalog: CurrentCatalog
    isolation: Isolation
    reasoning_seal: ReasoningSeal
    inference: Inference
    token_counting: TokenCounting
    ledger: Ledger
    lease: Lease
    backends: dict[str, Backend]
    default_threshold: int


@contextmanager
def located_database(settings: Settings) -> Iterator[str]:
    """Where the database is: the operator's own, or the embedded one, which runs meanwhile."""
    if settings.database.url:
        yield settings.database.url
        return
    with EmbeddedPostgres(settings.database.data_dir) as server:
        yield server.conninfo


@asynccontextmanager
async def running_services(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
) -> AsyncIterator[Services]:
    services = build_services(settings, conninfo, clock=clock, engine=engine)
    await services.database.open()
    for backend in services.backends.values():
        await backend.start()
    try:
        yield services
    finally:
        # Every call is resolved before the ledger's connections go.
        await services.inference.drain(0)
        await services.ledger.drain()
        await services.activity.drain()
        for backend in services.backends.values():
            await backend.close()
        await services.database.close()


def build_services(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
) -> Services:
    database = Database(
        conninfo,
        pool_size=settings.database.pool_size,
        pool_timeout_s=settings.database.pool_timeout_s,
        statement_timeout_s=settings.database.statement_timeout_s,
    )
    vault = Vault(master_secret(settings))
    idempotency = Idempotency(vault, clock)
    key_use = KeyUse()
    catalog = CurrentCatalog(build_catalog(settings))
    process_id = uuid4()
    limits = settings.limits
    project_limits = ProjectLimits(limits.requests_per_minute, limits.concurrency)
    ledger = Ledger(LedgerStore(database, process_id, project_limits))
    lease = Lease(database, process_id, settings.ledger.lease_s)
    recovery = Recovery(database, settings.ledger.lease_s)
    activity = Activity(database, clock, retention_days=settings.activity.retention_days)
    backends = build_backends(settings, engine)
    return Services(
        clock=clock,
        http=HttpConventions(
            body_bytes_max=settings.limits.body_bytes,
            body_timeout_s=settings.server.body_timeout_s,
            customer_key_header=settings.auth.customer_key_header,
            session_headers=settings.sessions.headers,
            model_listing=settings.extensions.model_listing,
        ),
        database=database,
        authentication=Authentication(database, key_use, clock),
        organizations=Organizations(database, clock),
        projects=Projects(database, clock),
        project_keys=ProjectKeys(
            database, idempotency, clock, settings.auth.project_key_default_permissions
        ),
        admin_keys=AdminKeys(database, clock),
        policies=Policies(database, idempotency, clock),
        models=Models(database, catalog),
        costs=Costs(database, vault, clock),
        billing=Billing(database, project_limits),
        reconciliation=Reconciliation(
            database,
            deadline_s=limits.inference_deadline_s,
            lease_s=settings.ledger.lease_s,
        ),
        recovery=recovery,
        activity=activity,
        upkeep=Upkeep(
            database,
            key_use=key_use,
            idempotency=idempotency,
            lease=lease,
            recovery=recovery,
            activity=activity,
        ),
        catalog=catalog,
        isolation=Isolation(vault),
        reasoning_seal=ReasoningSeal(vault),
        token_counting=TokenCounting(database, backends, project_limits),
        inference=Inference(
            Admission(ledger),
            backends,
            InferenceLimits(
                deadline_s=limits.inference_deadline_s,
                drain_s=limits.drain_s,
                drains_max=limits.drains,
            ),
        ),
        ledger=ledger,
        lease=lease,
        backends=backends,
        default_threshold=(
            _THRESHOLD_WITHOUT_JUDGE
            if settings.judge is None
            else settings.judge.default_threshold_basis_points
        ),
    )


def build_backends(settings: Settings, engine: EngineAddress | None) -> dict[str, Backend]:
    return {declared.name: _backend(declared, settings, engine) for declared in settings.backends}


def _backend(
    declared: BackendSettings, settings: Settings, engine: EngineAddress | None
) -> Backend:
    if declared.kind == "embedded" and engine is None:
        return AbsentBackend(declared.name, "The embedded engine does not run.")
    try:
        config = BackendConfig(
            name=declared.name,
            urls=declared.urls if engine is None or declared.urls else (engine.base_url,),
            api_key=_api_key(declared) if declared.kind == "openai" else _engine_key(engine),
            connect_timeout_s=declared.connect_timeout_s,
            idle_timeout_s=declared.idle_timeout_s,
            retries=declared.retries,
            native_n=declared.native_n and declared.kind == "openai",
            always_stream=declared.kind == "embedded",
            tokenizer=_tokenizer(declared),
            tokenize_path=declared.tokenize_path or None,
            fan_out_concurrency=(
                settings.embedded.parallel if declared.kind == "embedded" else _FAN_OUT
            ),
        )
    except ValueError as exc:
        raise SettingsError(f"backends: {exc}") from None
    routed: Backend = RoutedBackend(config)
    if config.native_n:
        return routed
    return FanOutBackend(routed, concurrency=config.fan_out_concurrency)


def _tokenizer(declared: BackendSettings) -> Tokenizer:
    if declared.kind == "embedded":
        return Tokenizer.LLAMA_CPP
    return Tokenizer.VLLM if declared.tokenize_path else Tokenizer.NONE


def _engine_key(engine: EngineAddress | None) -> str | None:
    return None if engine is None else engine.api_key


def _api_key(declared: BackendSettings) -> str | None:
    if declared.api_key_env:
        value = os.environ.get(declared.api_key_env, "")
        if not value:
            raise SettingsError(
                f"backends {declared.name!r}: api_key_env: ${declared.api_key_env} is not set."
            )
        return value
    if declared.api_key_file:
        return _read_secret(Path(declared.api_key_file)).decode()
    return None


def build_catalog(settings: Settings) -> Catalog:
    return Catalog(tuple(_model(model) for model in settings.models))


def _model(declared: ModelSettings) -> Model:
    try:
        pricing = pricing_from_declared(
            {str(key): value for key, value in declared.pricing.items()}, param="pricing"
        )
    except InvalidRequest as exc:
        raise SettingsError(f"models {declared.id!r}: {exc.param}: {exc.message}") from None
    return Model(
        id=declared.id,
        backend=declared.backend,
        upstream_model=declared.upstream_model,
        owned_by=declared.owned_by,
        name=declared.name or declared.id,
        display_name=declared.display_name or declared.name or declared.id,
        created=declared.created,
        context_length=declared.context_length,
        max_output_length=declared.max_output_length,
        input_modalities=declared.input_modalities,
        output_modalities=declared.output_modalities,
        quantization=declared.quantization,
        supported_sampling_parameters=declared.supported_sampling_parameters,
        supported_features=declared.supported_features,
        sampling_limits=declared.sampling_limits,
        sampling_limits_revision=declared.sampling_limits_revision,
        required_checks=declared.required_checks,
        is_ready=declared.is_ready,
        pricing=pricing,
        options=declared.options,
    )


def master_secret(settings: Settings) -> bytes:
    """The installation's secret: named by the operator, or made once in the data folder."""
    secrets = settings.secrets
    if secrets.master_key_env:
        found = os.environ.get(secrets.master_key_env, "").encode()
        return _long_enough(found, f"secrets.master_key_env: ${secrets.master_key_env}")
    if secrets.master_key_file:
        return _long_enough(_read_secret(Path(secrets.master_key_file)), "secrets.master_key_file")
    return _generated_secret(settings.database.data_dir / "master.key")


def _long_enough(secret: bytes, source: str) -> bytes:
    if len(secret) < MASTER_BYTES_MIN:
        raise SettingsError(f"{source} must hold at least {MASTER_BYTES_MIN} characters.")
    return secret


def _read_secret(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise SettingsError(f"The secret file {path} cannot be read: {exc.strerror}.") from exc


def _generated_secret(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_bytes(os.urandom(MASTER_BYTES_MIN).hex().encode())
    try:
        # A link appears whole or not at all, and never over another process's secret.
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return _long_enough(_read_secret(path), str(path))
