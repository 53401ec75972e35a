"""Collects all use cases in one object."""

# With this import, annotations are not evaluated. So a command can import this module without
# importing all use cases.
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tollkeeper.backends.port import Backend
    from tollkeeper.services.alerts import Alerts
    from tollkeeper.services.audit import Audit
    from tollkeeper.services.calls.activity import Activity
    from tollkeeper.services.calls.inference import Inference
    from tollkeeper.services.calls.isolation import Isolation
    from tollkeeper.services.calls.plans import Plans
    from tollkeeper.services.calls.reasoning_seal import ReasoningSeal
    from tollkeeper.services.calls.recorder import CallRecorder
    from tollkeeper.services.calls.token_counting import TokenCounting
    from tollkeeper.services.calls.traffic import Traffic
    from tollkeeper.services.clock import Clock
    from tollkeeper.services.ledger.accounts import Accounts
    from tollkeeper.services.ledger.bill import BillReconciliation
    from tollkeeper.services.ledger.bulk_resolution import BulkResolution
    from tollkeeper.services.ledger.caps import Caps
    from tollkeeper.services.ledger.costs import Costs
    from tollkeeper.services.ledger.excesses import Excesses
    from tollkeeper.services.ledger.ledger import Ledger
    from tollkeeper.services.ledger.log_comparison import RequestLogComparison
    from tollkeeper.services.ledger.months import LedgerMonths
    from tollkeeper.services.ledger.overview import LedgerOverview
    from tollkeeper.services.ledger.payments import Payments
    from tollkeeper.services.ledger.reconciliation import Reconciliation
    from tollkeeper.services.ledger.recovery import Lease, Recovery
    from tollkeeper.services.ledger.statements import Statements
    from tollkeeper.services.models import CurrentCatalog, Models
    from tollkeeper.services.policies.calibrations import Calibrations
    from tollkeeper.services.policies.checks import PolicyChecks
    from tollkeeper.services.policies.judge_costs import JudgeCosts
    from tollkeeper.services.policies.policies import Policies
    from tollkeeper.services.policies.statistics import PolicyStatistics
    from tollkeeper.services.replica_reports import ReplicaReports
    from tollkeeper.services.request_log import RequestLog
    from tollkeeper.services.tenants.admin_keys import AdminKeys
    from tollkeeper.services.tenants.administration_rate import AdministrationRate
    from tollkeeper.services.tenants.authentication import Authentication
    from tollkeeper.services.tenants.names import Names
    from tollkeeper.services.tenants.organizations import Organizations
    from tollkeeper.services.tenants.project_keys import ProjectKeys
    from tollkeeper.services.tenants.projects import Projects
    from tollkeeper.services.upkeep import Upkeep
    from tollkeeper.storage.database import Database


@dataclass(frozen=True, slots=True)
class Services:
    """Holds the objects that implement the use cases."""

    clock: Clock
    database: Database
    authentication: Authentication
    administration_rate: AdministrationRate
    names: Names
    organizations: Organizations
    projects: Projects
    project_keys: ProjectKeys
    admin_keys: AdminKeys
    policies: Policies
    calibrations: Calibrations
    models: Models
    plans: Plans
    costs: Costs
    accounts: Accounts
    payments: Payments
    statements: Statements
    caps: Caps
    reconciliation: Reconciliation
    bulk_resolution: BulkResolution
    bill_reconciliation: BillReconciliation
    request_log_comparison: RequestLogComparison
    months: LedgerMonths
    recovery: Recovery
    audit: Audit
    alerts: Alerts
    activity: Activity
    traffic: Traffic
    ledger_overview: LedgerOverview
    policy_statistics: PolicyStatistics
    judge_costs: JudgeCosts
    replica_reports: ReplicaReports
    upkeep: Upkeep
    catalog: CurrentCatalog
    isolation: Isolation
    reasoning_seal: ReasoningSeal
    inference: Inference
    token_counting: TokenCounting
    ledger: Ledger
    excesses: Excesses
    lease: Lease
    backends: dict[str, Backend]
    checks: PolicyChecks
    recorder: CallRecorder
    request_log: RequestLog
    # The threshold of policies without their own threshold, in basis points.
    default_threshold: int
