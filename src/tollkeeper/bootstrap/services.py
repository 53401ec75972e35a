"""The only folder that names concrete classes: from settings to services."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from uuid import uuid4

from tollkeeper.backends.engine_address import EngineAddress
from tollkeeper.backends.port import Backend
from tollkeeper.bootstrap.backends import build_backends, build_judge, judge_secret
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.secrets import master_secret
from tollkeeper.domain.conventions import MESSAGES_WEB_TOOLS
from tollkeeper.services.activity import Activity
from tollkeeper.services.admin_keys import AdminKeys
from tollkeeper.services.admission import Admission
from tollkeeper.services.authentication import Authentication
from tollkeeper.services.billing import Billing
from tollkeeper.services.chronicle import Chronicle
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
from tollkeeper.services.policy_checks import PolicyChecks
from tollkeeper.services.policy_directory import PolicyDirectory
from tollkeeper.services.project_keys import ProjectKeys
from tollkeeper.services.projects import Projects
from tollkeeper.services.reasoning_seal import ReasoningSeal
from tollkeeper.services.reconciliation import Reconciliation
from tollkeeper.services.recovery import Lease, Recovery
from tollkeeper.services.token_counting import TokenCounting
from tollkeeper.services.upkeep import Upkeep
from tollkeeper.services.vault import Vault
from tollkeeper.settings import Settings
from tollkeeper.storage.account_rows import ProjectLimits
from tollkeeper.storage.database import Database
from tollkeeper.storage.embedded_postgres import EmbeddedPostgres
from tollkeeper.storage.ledger_store import LedgerStore

# What a policy without a threshold of its own is shown with where no judge is configured.
_THRESHOLD_WITHOUT_JUDGE = 5000


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """What the HTTP face needs to know of the settings."""

    body_bytes_max: int
    body_timeout_s: float
    customer_key_header: str
    session_headers: tuple[str, ...]
    # Types of the server tools that token counting takes.
    messages_web_tools: frozenset[str]
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
    checks: PolicyChecks
    chronicle: Chronicle
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
    serving: bool = False,
) -> AsyncIterator[Services]:
    services = build_services(settings, conninfo, clock=clock, engine=engine, serving=serving)
    await services.database.open()
    for backend in services.backends.values():
        await backend.start()
    try:
        yield services
    finally:
        # Every call is resolved before the ledger's connections go.
        await services.inference.drain(0)
        await services.ledger.drain()
        await services.checks.drain()
        await services.chronicle.drain()
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
    serving: bool = False,
) -> Services:
    """Only a process that serves talks to backends: a command needs none of their secrets."""
    database = _database(settings, conninfo)
    vault = Vault(master_secret(settings))
    idempotency = Idempotency(vault, clock)
    key_use = KeyUse()
    catalog = CurrentCatalog(build_catalog(settings))
    process_id = uuid4()
    limits = settings.limits
    project_limits = ProjectLimits(limits.requests_per_minute, limits.concurrency)
    threshold = default_threshold(settings)
    directory = PolicyDirectory(threshold)
    ledger = Ledger(LedgerStore(database, process_id, project_limits, directory))
    lease = Lease(database, process_id, settings.ledger.lease_s)
    recovery = Recovery(database, settings.ledger.lease_s)
    activity = Activity(database, clock, retention_days=settings.activity.retention_days)
    backends = build_backends(settings, engine) if serving else {}
    judge = build_judge(settings, backends, judge_secret(vault)) if serving else None
    checks, chronicle = PolicyChecks(judge), Chronicle(activity)
    policies = Policies(database, idempotency, clock, directory)
    return Services(
        clock=clock,
        http=_http(settings),
        database=database,
        authentication=Authentication(database, key_use, clock),
        organizations=Organizations(database, clock),
        projects=Projects(database, clock),
        project_keys=ProjectKeys(
            database, idempotency, clock, settings.auth.project_key_default_permissions
        ),
        admin_keys=AdminKeys(database, clock),
        policies=policies,
        models=Models(database, catalog),
        costs=Costs(database, vault, clock),
        billing=Billing(database, project_limits),
        reconciliation=Reconciliation(
            database, deadline_s=limits.inference_deadline_s, lease_s=settings.ledger.lease_s
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
        inference=_inference(settings, ledger, backends, policies, checks, chronicle),
        ledger=ledger,
        lease=lease,
        backends=backends,
        checks=checks,
        chronicle=chronicle,
        default_threshold=threshold,
    )


def _database(settings: Settings, conninfo: str) -> Database:
    declared = settings.database
    return Database(
        conninfo,
        pool_size=declared.pool_size,
        pool_timeout_s=declared.pool_timeout_s,
        statement_timeout_s=declared.statement_timeout_s,
    )


def _http(settings: Settings) -> HttpConventions:
    return HttpConventions(
        body_bytes_max=settings.limits.body_bytes,
        body_timeout_s=settings.server.body_timeout_s,
        customer_key_header=settings.auth.customer_key_header,
        session_headers=settings.sessions.headers,
        messages_web_tools=MESSAGES_WEB_TOOLS.union(settings.messages.web_tool_aliases),
        model_listing=settings.extensions.model_listing,
    )


def _inference(
    settings: Settings,
    ledger: Ledger,
    backends: dict[str, Backend],
    policies: Policies,
    checks: PolicyChecks,
    chronicle: Chronicle,
) -> Inference:
    limits = settings.limits
    return Inference(
        Admission(ledger),
        backends,
        InferenceLimits(
            deadline_s=limits.inference_deadline_s,
            drain_s=limits.drain_s,
            drains_max=limits.drains,
            segment_characters=0 if settings.judge is None else settings.judge.segment_characters,
            judges_beside=settings.judge is not None and settings.judge.overlap,
        ),
        policies=policies,
        checks=checks,
        chronicle=chronicle,
    )


def default_threshold(settings: Settings) -> int:
    if settings.judge is None:
        return _THRESHOLD_WITHOUT_JUDGE
    return settings.judge.default_threshold_basis_points
