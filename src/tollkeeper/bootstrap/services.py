"""Builds the services, starts them, and drains them at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.backends.port import Backend
from tollkeeper.bootstrap.administration import Administration
from tollkeeper.bootstrap.backends import (
    build_backends,
    build_first_judge,
    build_judge,
    judge_secret,
)
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.ledger import LedgerServices, build_ledger
from tollkeeper.bootstrap.telemetry import build_tracer
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.domain.media_text import UnreadKind
from tollkeeper.embedded.engine_address import EngineAddress
from tollkeeper.runtime.late_log import logs_are_for_people
from tollkeeper.services.alerts import Alerts
from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.calls.inference import Inference
from tollkeeper.services.calls.isolation import Isolation
from tollkeeper.services.calls.plans import Plans
from tollkeeper.services.calls.reasoning_seal import ReasoningSeal
from tollkeeper.services.calls.recorder import CallRecorder
from tollkeeper.services.calls.running_calls import InferenceLimits
from tollkeeper.services.calls.token_counting import TokenCounting
from tollkeeper.services.calls.traffic import Traffic
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.services.ledger.bill import BillReconciliation
from tollkeeper.services.ledger.bulk_resolution import BulkAction, UnsettledRule
from tollkeeper.services.ledger.overview import LedgerOverview
from tollkeeper.services.ledger.reconciliation import Reconciliation
from tollkeeper.services.ledger.regular_verification import RegularVerification
from tollkeeper.services.models import CurrentCatalog, Models
from tollkeeper.services.overload import OverloadGate
from tollkeeper.services.policies.checks import PolicyChecks
from tollkeeper.services.policies.judge_costs import JudgeCosts
from tollkeeper.services.policies.policies import Policies
from tollkeeper.services.policies.statistics import PolicyStatistics
from tollkeeper.services.process_watch import ProcessWatch
from tollkeeper.services.replica_reports import ReplicaReports
from tollkeeper.services.request_log import RequestLog, json_lines, text_lines
from tollkeeper.services.tenants.administration_rate import AdministrationRate
from tollkeeper.services.tenants.authentication import Authentication
from tollkeeper.services.tenants.key_use import KeyUse
from tollkeeper.services.upkeep import Upkeep
from tollkeeper.services.use_cases import Services
from tollkeeper.services.vault import Vault
from tollkeeper.settings import Settings
from tollkeeper.storage.processes import LEASE_S
from tollkeeper.storage.verification import Ages

# After a client has gone, the gateway reads on for this long, because usage comes at the end. If neither
# output nor usage has come by then, the call is unsettled and its hold stays.
DRAIN_S = 10.0
# In one process: one for each connection that a worker can have (`hosting.descriptors.CONNECTIONS_MAX`). An
# organization's limit is a share, so that none uses all connections. Memory has its own limit.
CALLS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _RecordingServices:
    """They record calls and the state of replicas."""

    activity: Activity
    request_log: RequestLog
    alerts: Alerts
    recorder: CallRecorder
    replica_reports: ReplicaReports


@asynccontextmanager
async def running_services(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
    serving: bool = False,
) -> AsyncIterator[Services]:
    """Backends only if `serving`: other processes make no calls and may lack the secrets."""
    backends = build_backends(settings, engine) if serving else {}
    administration = Administration(settings, conninfo, clock)
    services = build_services(administration, backends, serving=serving)
    await services.database.open()
    for backend in services.backends.values():
        await backend.start()
    try:
        yield services
    finally:
        # Every outcome must be written before the connections close.
        await drain_services(services)
        if services.recorder.tracer is not None:
            await asyncio.to_thread(services.recorder.tracer.close)
        for backend in services.backends.values():
            await backend.close()
        await services.database.close()


async def drain_services(services: Services) -> None:
    """Stops the calls, and waits until everything pending is written."""
    await services.inference.drain(0)
    await services.ledger.drain()
    await services.checks.drain()
    await services.judge_costs.drain()
    await services.recorder.drain()
    await services.activity.drain()


def build_services(
    administration: Administration,
    backends: dict[str, Backend] | None = None,
    *,
    serving: bool = False,
) -> Services:
    settings, clock = administration.settings, administration.clock
    database, vault = administration.database, administration.vault
    policies = administration.policies
    backends, key_use = backends or {}, KeyUse()
    catalog, isolation = CurrentCatalog(build_catalog(settings)), Isolation(vault)
    models, accounting = Models(database, catalog), build_ledger(administration)
    judge_costs = JudgeCosts(database, clock, catalog)
    checks = _checks(settings, backends, vault, judge_costs, serving=serving)
    records = _recording_services(administration, backends, accounting.process_id, serving=serving)
    token_counting = TokenCounting(
        *(database, backends, administration.project_limits),
        *(accounting.admissibility, accounting.admission, policies),
    )
    inference = _inference(settings, accounting, token_counting, policies, checks, records.recorder)
    watch = ProcessWatch(database, backends, accounting.ledger, records.activity, inference, checks)
    return Services(
        clock=clock,
        database=database,
        authentication=Authentication(database, key_use, clock),
        administration_rate=AdministrationRate(),
        names=administration.names,
        organizations=administration.organizations,
        projects=administration.projects,
        project_keys=administration.project_keys,
        admin_keys=administration.admin_keys,
        policies=policies,
        calibrations=administration.calibrations,
        models=models,
        plans=Plans(models, catalog, backends, isolation),
        costs=administration.costs,
        accounts=administration.accounts,
        payments=administration.payments,
        statements=administration.statements,
        caps=administration.caps,
        reconciliation=Reconciliation(database, verification_ages(settings)),
        bulk_resolution=accounting.bulk_resolution,
        bill_reconciliation=BillReconciliation(database),
        request_log_comparison=accounting.request_log_comparison,
        months=accounting.months,
        recovery=accounting.recovery,
        audit=administration.audit,
        alerts=records.alerts,
        activity=records.activity,
        traffic=Traffic(database, records.activity, catalog),
        ledger_overview=LedgerOverview(database, clock),
        policy_statistics=PolicyStatistics(database, clock, administration.compared_judge),
        judge_costs=judge_costs,
        replica_reports=records.replica_reports,
        upkeep=_upkeep(administration, accounting, records, key_use, judge_costs, watch),
        catalog=catalog,
        isolation=isolation,
        reasoning_seal=ReasoningSeal(vault),
        token_counting=token_counting,
        inference=inference,
        ledger=accounting.ledger,
        excesses=accounting.excesses,
        lease=accounting.lease,
        backends=backends,
        checks=checks,
        recorder=records.recorder,
        request_log=records.request_log,
        default_threshold=administration.default_threshold,
    )


def _upkeep(
    administration: Administration,
    ledger_services: LedgerServices,
    records: _RecordingServices,
    key_use: KeyUse,
    judge_costs: JudgeCosts,
    watch: ProcessWatch,
) -> Upkeep:
    settings, database = administration.settings, administration.database
    return Upkeep(
        database=database,
        ledger=ledger_services.ledger,
        excesses=ledger_services.excesses,
        key_use=key_use,
        judge_costs=judge_costs,
        idempotency=administration.idempotency,
        lease=ledger_services.lease,
        recovery=ledger_services.recovery,
        bulk_resolution=ledger_services.bulk_resolution,
        unsettled_rule=unsettled_rule(settings),
        ledger_watch=ledger_services.watch,
        ledger_months=ledger_services.months,
        activity=records.activity,
        audit=administration.audit,
        process_watch=watch,
        replica_reports=records.replica_reports,
        alerts=records.alerts,
        regular_verification=RegularVerification(database, verification_ages(settings)),
    )


def verification_ages(settings: Settings) -> Ages:
    """The highest age of a hold in flight, and the lifetime of a lease."""
    return Ages(settings.limits.inference_deadline_s + LEASE_S, LEASE_S)


def _checks(
    settings: Settings,
    backends: dict[str, Backend],
    vault: Vault,
    judge_costs: JudgeCosts,
    *,
    serving: bool,
) -> PolicyChecks:
    judge = first = None
    if serving:
        judge = build_judge(settings, backends, judge_secret(vault))
        first = build_first_judge(settings, backends, judge_secret(vault))
    if judge is not None:
        judge.meter = judge_costs.note
    if first is not None:
        first.judge.meter = judge_costs.note
    return PolicyChecks(judge, first=first, denied_unread=denied_unread(settings))


def _recording_services(
    administration: Administration,
    backends: dict[str, Backend],
    process_id: UUID,
    *,
    serving: bool,
) -> _RecordingServices:
    """Unless `serving`, they log no requests, send no alerts and export no traces."""
    settings, database = administration.settings, administration.database
    retention_days = settings.activity.retention_days
    activity = Activity(database, administration.clock, retention_days=retention_days)
    lines = text_lines if logs_are_for_people() else json_lines
    request_log = RequestLog(lines if serving and settings.logs.requests else None)
    post = alert_webhook(settings) if serving else None
    alerts = Alerts(database, backends, post, administration.compared_judge)
    tracer = build_tracer() if serving else None
    recorder = CallRecorder(activity, request_log, alerts.note_usage_report, tracer)
    replica_reports = ReplicaReports(database, backends, process_id)
    return _RecordingServices(activity, request_log, alerts, recorder, replica_reports)


def _inference(
    settings: Settings,
    ledger_services: LedgerServices,
    token_counting: TokenCounting,
    policies: Policies,
    checks: PolicyChecks,
    recorder: CallRecorder,
) -> Inference:
    limits = settings.limits
    return Inference(
        ledger_services.admission,
        token_counting,
        InferenceLimits(
            deadline_s=limits.inference_deadline_s,
            drain_s=DRAIN_S,
            calls_max=CALLS_MAX,
            segment_characters=0 if settings.judge is None else settings.judge.segment_characters,
            judges_in_parallel=settings.judge is not None and settings.judge.overlap,
        ),
        policies=policies,
        checks=checks,
        recorder=recorder,
        overload=OverloadGate(),
    )


def unsettled_rule(settings: Settings) -> UnsettledRule | None:
    """None if only operators resolve them."""
    declared = settings.ledger
    if declared.unsettled_after_hours == 0 or declared.unsettled_resolution == "keep":
        return None
    return UnsettledRule(declared.unsettled_after_hours, BulkAction(declared.unsettled_resolution))


def denied_unread(settings: Settings) -> frozenset[UnreadKind]:
    # The setting's "images" and "files" are the kinds "image" and "file".
    return frozenset(UnreadKind(name.removesuffix("s")) for name in settings.policy.denied_content)
