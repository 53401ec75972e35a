"""Builds the services from the settings, and runs and drains them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.backends.port import Backend
from tollkeeper.bootstrap.backends import build_backends, build_judge, judge_secret
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.ledger import LedgerServices, build_ledger
from tollkeeper.bootstrap.secrets import master_secret
from tollkeeper.bootstrap.telemetry import build_tracer
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.domain.conventions import DEFAULT_THRESHOLD_BASIS_POINTS
from tollkeeper.domain.media_text import UnreadKind
from tollkeeper.embedded.bridge_address import BridgeAddress
from tollkeeper.embedded.engine_address import EngineAddress
from tollkeeper.embedded.postgres import EmbeddedPostgres
from tollkeeper.services.alerts import Alerts
from tollkeeper.services.audit import Audit
from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.inference import Inference
from tollkeeper.services.calls.isolation import Isolation
from tollkeeper.services.calls.reasoning_seal import ReasoningSeal
from tollkeeper.services.calls.recorder import CallRecorder
from tollkeeper.services.calls.running_calls import InferenceLimits
from tollkeeper.services.calls.token_counting import TokenCounting
from tollkeeper.services.calls.traffic import Traffic
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.services.ledger.bill import BillReconciliation
from tollkeeper.services.ledger.billing import Billing
from tollkeeper.services.ledger.bulk_resolution import BulkAction, UnsettledRule
from tollkeeper.services.ledger.costs import Costs
from tollkeeper.services.ledger.overview import LedgerOverview
from tollkeeper.services.ledger.reconciliation import Reconciliation
from tollkeeper.services.ledger.regular_verification import RegularVerification
from tollkeeper.services.minute_rate import MinuteRate
from tollkeeper.services.models import CurrentCatalog, Models
from tollkeeper.services.overload import OverloadGate
from tollkeeper.services.policies.checks import PolicyChecks
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.services.policies.policies import Policies
from tollkeeper.services.policies.statistics import PolicyStatistics
from tollkeeper.services.process_watch import ProcessWatch
from tollkeeper.services.replica_reports import ReplicaReports
from tollkeeper.services.request_log import RequestLog, json_line, text_line
from tollkeeper.services.tenants.admin_keys import AdminKeys
from tollkeeper.services.tenants.administration_rate import AdministrationRate
from tollkeeper.services.tenants.authentication import Authentication
from tollkeeper.services.tenants.idempotency import Idempotency
from tollkeeper.services.tenants.key_use import KeyUse
from tollkeeper.services.tenants.names import Names
from tollkeeper.services.tenants.organizations import Organizations
from tollkeeper.services.tenants.project_keys import ProjectKeys
from tollkeeper.services.tenants.projects import Projects
from tollkeeper.services.upkeep import Upkeep
from tollkeeper.services.use_cases import Services
from tollkeeper.services.vault import Vault
from tollkeeper.settings import Settings
from tollkeeper.storage.database import Database
from tollkeeper.storage.verification import Ages


@dataclass(frozen=True, slots=True)
class _Records:
    """What a process writes down about its calls, its replicas and changes."""

    activity: Activity
    audit: Audit
    request_log: RequestLog
    alerts: Alerts
    recorder: CallRecorder
    replica_reports: ReplicaReports


@contextmanager
def located_database(settings: Settings) -> Iterator[str]:
    """The connection string of the operator's own database, or of the embedded one, which is kept
    running for the duration of the context."""
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
    bridge: BridgeAddress | None = None,
    serving: bool = False,
) -> AsyncIterator[Services]:
    services = build_services(
        settings, conninfo, clock=clock, engine=engine, bridge=bridge, serving=serving
    )
    await services.database.open()
    for backend in services.backends.values():
        await backend.start()
    try:
        yield services
    finally:
        # Every call must be resolved before the database connections are closed.
        await services.inference.drain(0)
        await services.ledger.drain()
        await services.checks.drain()
        await services.recorder.drain()
        await services.activity.drain()
        if services.recorder.tracer is not None:
            await asyncio.to_thread(services.recorder.tracer.close)
        for backend in services.backends.values():
            await backend.close()
        await services.database.close()


def build_services(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
    bridge: BridgeAddress | None = None,
    serving: bool = False,
) -> Services:
    """Builds backends only if `serving`: a command makes no calls and needs no backend's secret."""
    database = _database(settings, conninfo)
    vault, directory = Vault(master_secret(settings)), PolicyDirectory(default_threshold(settings))
    idempotency, key_use = Idempotency(vault, clock), KeyUse()
    catalog = CurrentCatalog(build_catalog(settings))
    books = build_ledger(settings, database, clock, directory)
    policies = Policies(database, idempotency, clock, directory, settings.limits.policies)
    backends = build_backends(settings, engine, bridge) if serving else {}
    checks = _checks(settings, backends, vault, serving=serving)
    records = _records(settings, database, backends, books.process_id, clock, serving=serving)
    token_counting = TokenCounting(
        database, backends, books.project_limits, books.admissibility, books.admission, policies
    )
    inference = _inference(
        settings, books, token_counting, backends, policies, checks, records.recorder
    )
    watch = ProcessWatch(database, backends, books.ledger, records.activity, inference, checks)
    upkeep = _upkeep(
        settings, database, books, records, key_use=key_use, idempotency=idempotency, watch=watch
    )
    return Services(
        clock=clock,
        database=database,
        authentication=Authentication(database, key_use, clock),
        administration_rate=_administration_rate(settings),
        names=Names(database),
        organizations=Organizations(database, clock),
        projects=Projects(database, clock),
        project_keys=_project_keys(settings, database, idempotency, clock),
        admin_keys=AdminKeys(database, clock),
        policies=policies,
        models=Models(database, catalog),
        costs=Costs(database, vault, clock),
        billing=Billing(database, books.project_limits),
        caps=books.caps,
        reconciliation=_reconciliation(settings, database),
        bulk_resolution=books.bulk_resolution,
        bill_reconciliation=BillReconciliation(database),
        months=books.months,
        recovery=books.recovery,
        audit=records.audit,
        alerts=records.alerts,
        activity=records.activity,
        traffic=Traffic(database, records.activity, catalog),
        ledger_overview=LedgerOverview(database, clock),
        policy_statistics=PolicyStatistics(database, clock),
        replica_reports=records.replica_reports,
        upkeep=upkeep,
        catalog=catalog,
        isolation=Isolation(vault),
        reasoning_seal=ReasoningSeal(vault),
        token_counting=token_counting,
        inference=inference,
        ledger=books.ledger,
        lease=books.lease,
        backends=backends,
        checks=checks,
        recorder=records.recorder,
        request_log=records.request_log,
        default_threshold=default_threshold(settings),
    )


def _upkeep(
    settings: Settings,
    database: Database,
    books: LedgerServices,
    records: _Records,
    *,
    key_use: KeyUse,
    idempotency: Idempotency,
    watch: ProcessWatch,
) -> Upkeep:
    return Upkeep(
        database,
        ledger=books.ledger,
        key_use=key_use,
        idempotency=idempotency,
        lease=books.lease,
        recovery=books.recovery,
        bulk_resolution=books.bulk_resolution,
        unsettled_rule=unsettled_rule(settings),
        ledger_watch=books.watch,
        ledger_months=books.months,
        caps=books.caps,
        activity=records.activity,
        audit=records.audit,
        process_watch=watch,
        replica_reports=records.replica_reports,
        alerts=records.alerts,
        regular_verification=RegularVerification(
            database, verification_ages(settings), settings.ledger.verify_every_hours
        ),
    )


def verification_ages(settings: Settings) -> Ages:
    lease_s = settings.ledger.lease_s
    return Ages(settings.limits.inference_deadline_s + lease_s, lease_s)


def _database(settings: Settings, conninfo: str) -> Database:
    declared = settings.database
    return Database(
        conninfo,
        pool_size=declared.pool_size,
        pool_timeout_s=declared.pool_timeout_s,
        statement_timeout_s=declared.statement_timeout_s,
    )


def _checks(
    settings: Settings, backends: dict[str, Backend], vault: Vault, *, serving: bool
) -> PolicyChecks:
    judge = build_judge(settings, backends, judge_secret(vault)) if serving else None
    return PolicyChecks(judge, denied_unread=denied_unread(settings))


def _records(
    settings: Settings,
    database: Database,
    backends: dict[str, Backend],
    process_id: UUID,
    clock: Clock,
    *,
    serving: bool,
) -> _Records:
    """A command logs no requests, posts no alerts and exports no traces."""
    activity = Activity(database, clock, retention_days=settings.activity.retention_days)
    audit = Audit(database, clock, retention_days=settings.audit.retention_days)
    line = text_line if settings.logs.format == "text" else json_line
    request_log = RequestLog(line if serving and settings.logs.requests else None)
    post = alert_webhook(settings) if serving else None
    alerts = Alerts(database, backends, post, settings.alerts.interval_s)
    tracer = build_tracer(settings) if serving else None
    recorder = CallRecorder(activity, request_log, alerts.note_usage_report, tracer)
    replica_reports = ReplicaReports(database, backends, process_id)
    return _Records(activity, audit, request_log, alerts, recorder, replica_reports)


def _administration_rate(settings: Settings) -> AdministrationRate:
    return AdministrationRate(MinuteRate(settings.limits.administration_per_minute))


def _project_keys(
    settings: Settings, database: Database, idempotency: Idempotency, clock: Clock
) -> ProjectKeys:
    permissions = settings.auth.project_key_default_permissions
    return ProjectKeys(database, idempotency, clock, permissions, settings.limits.project_keys)


def _reconciliation(settings: Settings, database: Database) -> Reconciliation:
    return Reconciliation(
        database,
        deadline_s=settings.limits.inference_deadline_s,
        lease_s=settings.ledger.lease_s,
    )


def _inference(
    settings: Settings,
    books: LedgerServices,
    token_counting: TokenCounting,
    backends: dict[str, Backend],
    policies: Policies,
    checks: PolicyChecks,
    recorder: CallRecorder,
) -> Inference:
    limits = settings.limits
    return Inference(
        books.admission,
        token_counting,
        backends,
        InferenceLimits(
            deadline_s=limits.inference_deadline_s,
            drain_s=limits.drain_s,
            drains_max=limits.drains,
            calls_max=limits.calls,
            segment_characters=0 if settings.judge is None else settings.judge.segment_characters,
            judges_beside=settings.judge is not None and settings.judge.overlap,
        ),
        policies=policies,
        checks=checks,
        recorder=recorder,
        overload=OverloadGate(limits.overload_turn_s),
    )


def unsettled_rule(settings: Settings) -> UnsettledRule | None:
    declared = settings.ledger
    if declared.unsettled_after_hours == 0 or declared.unsettled_resolution == "keep":
        return None
    return UnsettledRule(declared.unsettled_after_hours, BulkAction(declared.unsettled_resolution))


def denied_unread(settings: Settings) -> frozenset[UnreadKind]:
    declared = settings.policy
    by_kind = {
        UnreadKind.IMAGE: declared.unreadable_images,
        UnreadKind.AUDIO: declared.unreadable_audio,
        UnreadKind.VIDEO: declared.unreadable_video,
        UnreadKind.FILE: declared.unreadable_files,
        UnreadKind.SEALED_REASONING: declared.unreadable_sealed_reasoning,
    }
    return frozenset(kind for kind, rule in by_kind.items() if rule == "deny")


def default_threshold(settings: Settings) -> int:
    if settings.judge is None:
        return DEFAULT_THRESHOLD_BASIS_POINTS
    return settings.judge.default_threshold_basis_points
