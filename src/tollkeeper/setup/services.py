"""The services of a process. Each is imported and built on first use: importing all takes longer than most
commands run."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from tollkeeper.core.conventions import DEFAULT_THRESHOLD_BASIS_POINTS
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.core.runtime.late_log import silence_again
from tollkeeper.database.database import Database
from tollkeeper.money.holds.rule import DefaultLimits
from tollkeeper.policies.judge.rule import prompt_format
from tollkeeper.policies.policy import JudgeFormat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    # mypy treats only `cached_property` itself as a property.
    from functools import cached_property as _service
    from uuid import UUID

    from tollkeeper.calls.admission import Admission
    from tollkeeper.calls.inference import Inference
    from tollkeeper.calls.isolation import Isolation
    from tollkeeper.calls.plans import Plans
    from tollkeeper.calls.reasoning_seal import ReasoningSeal
    from tollkeeper.calls.recorder import CallRecorder
    from tollkeeper.calls.token_counting import TokenCounting
    from tollkeeper.core.port import Backend
    from tollkeeper.core.runtime.overload import OverloadGate
    from tollkeeper.core.runtime.request_log import RequestLog
    from tollkeeper.core.runtime.vault import Vault
    from tollkeeper.money.caps.service import Caps
    from tollkeeper.money.credit.service import Accounts
    from tollkeeper.money.holds.admissibility import Admissibility
    from tollkeeper.money.holds.ledger import Ledger
    from tollkeeper.money.log_comparison.service import RequestLogComparison
    from tollkeeper.money.months.service import LedgerMonths
    from tollkeeper.money.overage.service import Excesses
    from tollkeeper.money.payments.service import Payments
    from tollkeeper.money.unsettled.bulk_resolution import BulkResolution
    from tollkeeper.money.unsettled.open_holds import OpenHolds
    from tollkeeper.money.unsettled.recovery import Lease, Recovery
    from tollkeeper.money.unsettled.service import Reconciliation
    from tollkeeper.money.verification.metrics import LedgerWatch
    from tollkeeper.money.verification.service import RegularVerification
    from tollkeeper.money.verification.store import Ages
    from tollkeeper.policies.calibration.service import Calibrations
    from tollkeeper.policies.checks import PolicyChecks
    from tollkeeper.policies.directory import PolicyDirectory
    from tollkeeper.policies.policies import Policies
    from tollkeeper.reports.activity.service import Activity
    from tollkeeper.reports.alerts.service import Alerts
    from tollkeeper.reports.bills.service import BillReconciliation
    from tollkeeper.reports.costs.service import Costs
    from tollkeeper.reports.judge_costs import JudgeCosts
    from tollkeeper.reports.overview import LedgerOverview
    from tollkeeper.reports.policy_statistics import PolicyStatistics
    from tollkeeper.reports.replicas.service import ReplicaReports
    from tollkeeper.reports.statements.service import Statements
    from tollkeeper.reports.traffic.service import Traffic
    from tollkeeper.setup.embedded.engine_address import EngineAddress
    from tollkeeper.setup.process_watch import ProcessWatch
    from tollkeeper.setup.settings import Settings
    from tollkeeper.setup.upkeep import Upkeep
    from tollkeeper.tenants.admin_keys import AdminKeys
    from tollkeeper.tenants.administration_rate import AdministrationRate
    from tollkeeper.tenants.audit.service import Audit
    from tollkeeper.tenants.authentication import Authentication
    from tollkeeper.tenants.idempotency import Idempotency
    from tollkeeper.tenants.key_use import KeyUse
    from tollkeeper.tenants.models import CurrentCatalog, Models
    from tollkeeper.tenants.names import Names
    from tollkeeper.tenants.organizations import Organizations
    from tollkeeper.tenants.project_keys import ProjectKeys
    from tollkeeper.tenants.projects import Projects
else:

    class _service(cached_property):  # noqa: N801 - reads like `cached_property`
        """Builds a service when it's first used. Its import may have imported structlog, so logs that a
        command has silenced are silenced again."""

        def __get__(self, services, owner=None):
            built = super().__get__(services, owner)
            silence_again()
            return built


class Services:
    """Has the objects that implement the use cases, each with the objects that it needs."""

    def __init__(
        self,
        settings: Settings,
        conninfo: str,
        clock: Clock = unix_now,
        *,
        backends: dict[str, Backend] | None = None,
        serving: bool = False,
        on_outdated: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Without `serving`, as in a command, no requests are logged, no alerts are sent, no traces are
        exported, and there is no judge. `on_outdated` gets the reason when the schema has become too new
        for this code."""
        self.settings = settings
        self.clock = clock
        self.backends = backends or {}
        self._serving = serving
        self._on_outdated = on_outdated
        declared = settings.database
        self.database = Database(
            conninfo, pool_size=declared.pool_size, seen_file=declared.seen_file
        )

    def build_all(self) -> None:
        """Builds the services that aren't built yet, so that a server finds wrong settings at its start and
        no request waits for an import."""
        for name, value in vars(type(self)).items():
            if isinstance(value, _service):
                getattr(self, name)

    async def drain(self) -> None:
        """Stops the calls, and waits until everything pending is written."""
        built = vars(self)
        if "inference" in built:
            await self.inference.drain(0)
        if "ledger" in built:
            await self.ledger.drain()
        if "checks" in built:
            await self.checks.drain()
        if "judge_costs" in built:
            await self.judge_costs.drain()
        if "recorder" in built:
            await self.recorder.drain()
        if "activity" in built:
            await self.activity.drain()

    @_service
    def vault(self) -> Vault:
        from tollkeeper.core.runtime.vault import Vault
        from tollkeeper.setup.secrets import master_secret

        return Vault(master_secret(self.settings))

    @_service
    def catalog(self) -> CurrentCatalog:
        from tollkeeper.setup.catalog import build_catalog
        from tollkeeper.tenants.models import CurrentCatalog

        return CurrentCatalog(build_catalog(self.settings))

    @_service
    def models(self) -> Models:
        from tollkeeper.tenants.models import Models

        return Models(self.database, self.catalog)

    @_service
    def isolation(self) -> Isolation:
        from tollkeeper.calls.isolation import Isolation

        return Isolation(self.vault)

    @_service
    def reasoning_seal(self) -> ReasoningSeal:
        from tollkeeper.calls.reasoning_seal import ReasoningSeal

        return ReasoningSeal(self.vault)

    @_service
    def plans(self) -> Plans:
        from tollkeeper.calls.plans import Plans

        return Plans(self.models, self.catalog, self.backends, self.isolation)

    # Tenants.

    @_service
    def key_use(self) -> KeyUse:
        from tollkeeper.tenants.key_use import KeyUse

        return KeyUse()

    @_service
    def authentication(self) -> Authentication:
        from tollkeeper.tenants.authentication import Authentication

        return Authentication(self.database, self.key_use, self.clock)

    @_service
    def administration_rate(self) -> AdministrationRate:
        from tollkeeper.tenants.administration_rate import AdministrationRate

        return AdministrationRate()

    @_service
    def names(self) -> Names:
        from tollkeeper.tenants.names import Names

        return Names(self.database)

    @_service
    def organizations(self) -> Organizations:
        from tollkeeper.tenants.organizations import Organizations

        return Organizations(self.database, self.clock)

    @_service
    def projects(self) -> Projects:
        from tollkeeper.tenants.projects import Projects

        return Projects(self.database, self.clock)

    @_service
    def idempotency(self) -> Idempotency:
        from tollkeeper.tenants.idempotency import Idempotency

        return Idempotency(self.vault, self.clock)

    @_service
    def project_keys(self) -> ProjectKeys:
        from tollkeeper.tenants.project_keys import ProjectKeys

        permissions = self.settings.auth.project_key_default_permissions
        return ProjectKeys(self.database, self.idempotency, self.clock, permissions)

    @_service
    def admin_keys(self) -> AdminKeys:
        from tollkeeper.tenants.admin_keys import AdminKeys

        return AdminKeys(self.database, self.clock)

    @_service
    def audit(self) -> Audit:
        from tollkeeper.tenants.audit.service import Audit

        retention_days = self.settings.audit.retention_days
        return Audit(self.database, self.clock, retention_days=retention_days)

    # Policies.

    @_service
    def default_threshold(self) -> int:
        """In basis points."""
        judge = self.settings.judge
        return (
            DEFAULT_THRESHOLD_BASIS_POINTS
            if judge is None
            else judge.default_threshold_basis_points
        )

    @property
    def _compared_judge(self) -> JudgeFormat | None:
        """The judge whose present scores compare with those at calibration. None without a judge, or if
        another model, the first judge, answers some questions."""
        judge = self.settings.judge
        return None if judge is None or judge.first.backend else judge_format(self.settings)

    @_service
    def policy_directory(self) -> PolicyDirectory:
        from tollkeeper.policies.directory import PolicyDirectory

        return PolicyDirectory(self.default_threshold, judge_format(self.settings))

    @_service
    def calibrations(self) -> Calibrations:
        from tollkeeper.policies.calibration.service import Calibrations

        return Calibrations(self.database, self.clock)

    @_service
    def policies(self) -> Policies:
        from tollkeeper.policies.policies import Policies

        return Policies(self.database, self.idempotency, self.clock, self.policy_directory)

    @_service
    def policy_statistics(self) -> PolicyStatistics:
        from tollkeeper.reports.policy_statistics import PolicyStatistics

        return PolicyStatistics(self.database, self.clock, self._compared_judge)

    @_service
    def judge_costs(self) -> JudgeCosts:
        from tollkeeper.reports.judge_costs import JudgeCosts

        return JudgeCosts(self.database, self.clock, self.catalog)

    @_service
    def checks(self) -> PolicyChecks:
        from tollkeeper.setup.calls import build_checks

        vault = self.vault if self._serving else None
        return build_checks(self.settings, self.backends, vault, self.judge_costs.note)

    # Money.

    @_service
    def limits(self) -> DefaultLimits:
        limits = self.settings.limits
        bound = self.settings.ledger.overage_bound_usd
        return DefaultLimits(
            limits.requests_per_minute,
            limits.concurrency,
            overage_bound_picousd=picousd_from_usd(bound) if bound else None,
        )

    @_service
    def accounts(self) -> Accounts:
        from tollkeeper.money.credit.service import Accounts

        return Accounts(self.database, self.limits)

    @_service
    def caps(self) -> Caps:
        from tollkeeper.money.caps.service import Caps

        return Caps(self.database, self.limits)

    @_service
    def costs(self) -> Costs:
        from tollkeeper.reports.costs.service import Costs

        return Costs(self.database, self.vault, self.clock)

    @_service
    def payments(self) -> Payments:
        from tollkeeper.money.payments.service import Payments

        return Payments(self.database, self.limits)

    @_service
    def statements(self) -> Statements:
        from tollkeeper.reports.statements.service import Statements

        return Statements(self.database)

    @_service
    def ledger_overview(self) -> LedgerOverview:
        from tollkeeper.reports.overview import LedgerOverview

        return LedgerOverview(self.database, self.clock)

    @_service
    def bill_reconciliation(self) -> BillReconciliation:
        from tollkeeper.reports.bills.service import BillReconciliation

        return BillReconciliation(self.database)

    @_service
    def bulk_resolution(self) -> BulkResolution:
        from tollkeeper.money.unsettled.bulk_resolution import BulkResolution

        return BulkResolution(self.database, self.limits)

    @_service
    def request_log_comparison(self) -> RequestLogComparison:
        from tollkeeper.money.log_comparison.service import RequestLogComparison

        return RequestLogComparison(self.database, self.process_id, self.bulk_resolution)

    @_service
    def months(self) -> LedgerMonths:
        from tollkeeper.money.months.service import LedgerMonths

        return LedgerMonths(self.database, self.clock, self.bulk_resolution)

    @_service
    def ages(self) -> Ages:
        """The highest age of a hold in flight, and the lifetime of a lease."""
        from tollkeeper.database.processes import LEASE_S
        from tollkeeper.money.verification.store import Ages

        return Ages(self.settings.limits.inference_deadline_s + LEASE_S, LEASE_S)

    @_service
    def reconciliation(self) -> Reconciliation:
        from tollkeeper.money.unsettled.service import Reconciliation

        return Reconciliation(self.database, self.ages)

    @_service
    def regular_verification(self) -> RegularVerification:
        from tollkeeper.money.verification.service import RegularVerification

        return RegularVerification(self.database, self.ages)

    # The ledger of this process.

    @_service
    def process_id(self) -> UUID:
        from uuid import uuid4

        return uuid4()

    @_service
    def excesses(self) -> Excesses:
        from tollkeeper.money.overage.service import Excesses

        return Excesses(self.database, self.clock)

    @_service
    def ledger(self) -> Ledger:
        from tollkeeper.money.holds.ledger import Ledger
        from tollkeeper.money.holds.store import LedgerStore

        store = LedgerStore(self.database, self.process_id, self.limits)
        overload = self.overload

        def is_busy() -> bool:
            return overload.limit is not None

        return Ledger(store, self.policy_directory, self.excesses, is_busy)

    @_service
    def admissibility(self) -> Admissibility:
        from tollkeeper.money.holds.admissibility import Admissibility

        return Admissibility(self.database, self.limits, self.clock)

    @_service
    def lease(self) -> Lease:
        from tollkeeper.money.unsettled.recovery import Lease

        return Lease(self.database, self.process_id, on_outdated=self._on_outdated)

    @_service
    def _open_holds(self) -> OpenHolds:
        """Shared: each search first checks what the one before found."""
        from tollkeeper.money.unsettled.open_holds import OpenHolds

        return OpenHolds()

    @_service
    def recovery(self) -> Recovery:
        from tollkeeper.money.unsettled.recovery import OwnHolds, Recovery

        own = OwnHolds(self.process_id, self.ledger.is_open)
        return Recovery(self.database, open_holds=self._open_holds, own=own)

    @_service
    def ledger_watch(self) -> LedgerWatch:
        from tollkeeper.money.verification.metrics import LedgerWatch

        return LedgerWatch(self.database, self._open_holds)

    # Calls.

    @_service
    def overload(self) -> OverloadGate:
        from tollkeeper.core.runtime.overload import OverloadGate

        return OverloadGate()

    @_service
    def admission(self) -> Admission:
        from tollkeeper.calls.admission import Admission

        return Admission(self.ledger, self.clock)

    @_service
    def token_counting(self) -> TokenCounting:
        from tollkeeper.calls.token_counting import TokenCounting

        return TokenCounting(
            *(self.database, self.backends, self.limits),
            *(self.admissibility, self.admission, self.policies),
        )

    @_service
    def inference(self) -> Inference:
        from tollkeeper.calls.inference import Inference
        from tollkeeper.setup.calls import inference_limits

        return Inference(
            *(self.admission, self.token_counting, inference_limits(self.settings)),
            policies=self.policies,
            checks=self.checks,
            recorder=self.recorder,
            overload=self.overload,
        )

    @_service
    def activity(self) -> Activity:
        from tollkeeper.reports.activity.service import Activity

        retention_days = self.settings.activity.retention_days
        return Activity(self.database, self.clock, retention_days=retention_days)

    @_service
    def traffic(self) -> Traffic:
        from tollkeeper.reports.traffic.service import Traffic

        return Traffic(self.database, self.activity, self.catalog)

    @_service
    def request_log(self) -> RequestLog:
        from tollkeeper.setup.calls import build_request_log

        return build_request_log(self.settings, serving=self._serving)

    @_service
    def recorder(self) -> CallRecorder:
        from tollkeeper.calls.recorder import CallRecorder
        from tollkeeper.setup.telemetry import build_tracer

        tracer = build_tracer() if self._serving else None
        return CallRecorder(self.activity, self.request_log, self.alerts.note_usage_report, tracer)

    # Operations.

    @_service
    def alerts(self) -> Alerts:
        from tollkeeper.reports.alerts.service import Alerts
        from tollkeeper.setup.webhook import alert_webhook

        post = alert_webhook(self.settings) if self._serving else None
        return Alerts(self.database, self.backends, post, self._compared_judge)

    @_service
    def replica_reports(self) -> ReplicaReports:
        from tollkeeper.reports.replicas.service import ReplicaReports

        return ReplicaReports(self.database, self.backends, self.process_id)

    @_service
    def process_watch(self) -> ProcessWatch:
        from tollkeeper.setup.process_watch import ProcessWatch

        return ProcessWatch(
            *(self.database, self.backends, self.ledger),
            *(self.activity, self.inference, self.checks),
        )

    @_service
    def upkeep(self) -> Upkeep:
        from tollkeeper.setup.calls import unsettled_rule
        from tollkeeper.setup.upkeep import Upkeep

        return Upkeep(
            database=self.database,
            ledger=self.ledger,
            excesses=self.excesses,
            key_use=self.key_use,
            judge_costs=self.judge_costs,
            idempotency=self.idempotency,
            lease=self.lease,
            recovery=self.recovery,
            bulk_resolution=self.bulk_resolution,
            unsettled_rule=unsettled_rule(self.settings),
            ledger_watch=self.ledger_watch,
            ledger_months=self.months,
            activity=self.activity,
            audit=self.audit,
            process_watch=self.process_watch,
            replica_reports=self.replica_reports,
            alerts=self.alerts,
            regular_verification=self.regular_verification,
        )


@asynccontextmanager
async def command_services(settings: Settings, conninfo: str) -> AsyncIterator[Services]:
    """Runs the services of a command, which builds only those that it uses."""
    services = Services(settings, conninfo)
    await services.database.open()
    try:
        yield services
    finally:
        await services.drain()
        await services.database.close()


@asynccontextmanager
async def running_services(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
    serving: bool = False,
    on_outdated: Callable[[str], None] = lambda reason: None,
) -> AsyncIterator[Services]:
    """Backends only if `serving`: other processes make no calls and may lack the secrets."""
    from tollkeeper.setup.backends import build_backends

    services = Services(
        *(settings, conninfo, clock),
        backends=build_backends(settings, engine) if serving else {},
        serving=serving,
        on_outdated=on_outdated,
    )
    services.build_all()
    await services.database.open()
    for backend in services.backends.values():
        await backend.start()
    try:
        yield services
    finally:
        # Every outcome must be written before the connections close.
        await services.drain()
        if services.recorder.tracer is not None:
            await asyncio.to_thread(services.recorder.tracer.close)
        for backend in services.backends.values():
            await backend.close()
        await services.database.close()


def judge_format(settings: Settings) -> JudgeFormat | None:
    """What the judge's scores depend on."""
    judge = settings.judge
    return None if judge is None else JudgeFormat(judge.model, prompt_format())
