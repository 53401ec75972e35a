"""The services for administration, which need the database but no backends. Each is imported and built on
first use: importing all takes longer than most commands run."""

from functools import cached_property
from typing import TYPE_CHECKING

from tollkeeper.domain.admission import DefaultLimits
from tollkeeper.domain.conventions import DEFAULT_THRESHOLD_BASIS_POINTS
from tollkeeper.domain.judging import prompt_format
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.domain.policy import JudgeFormat
from tollkeeper.services.clock import Clock
from tollkeeper.settings import Settings
from tollkeeper.storage.database import Database

if TYPE_CHECKING:
    from tollkeeper.services.audit import Audit
    from tollkeeper.services.ledger.accounts import Accounts
    from tollkeeper.services.ledger.caps import Caps
    from tollkeeper.services.ledger.costs import Costs
    from tollkeeper.services.ledger.payments import Payments
    from tollkeeper.services.ledger.statements import Statements
    from tollkeeper.services.policies.calibrations import Calibrations
    from tollkeeper.services.policies.directory import PolicyDirectory
    from tollkeeper.services.policies.policies import Policies
    from tollkeeper.services.tenants.admin_keys import AdminKeys
    from tollkeeper.services.tenants.idempotency import Idempotency
    from tollkeeper.services.tenants.names import Names
    from tollkeeper.services.tenants.organizations import Organizations
    from tollkeeper.services.tenants.project_keys import ProjectKeys
    from tollkeeper.services.tenants.projects import Projects
    from tollkeeper.services.vault import Vault


class Administration:
    def __init__(self, settings: Settings, conninfo: str, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        declared = settings.database
        self.database = Database(
            conninfo, pool_size=declared.pool_size, seen_file=declared.seen_file
        )

    @cached_property
    def vault(self) -> "Vault":
        from tollkeeper.bootstrap.secrets import master_secret
        from tollkeeper.services.vault import Vault

        return Vault(master_secret(self.settings))

    @cached_property
    def names(self) -> "Names":
        from tollkeeper.services.tenants.names import Names

        return Names(self.database)

    @cached_property
    def organizations(self) -> "Organizations":
        from tollkeeper.services.tenants.organizations import Organizations

        return Organizations(self.database, self.clock)

    @cached_property
    def projects(self) -> "Projects":
        from tollkeeper.services.tenants.projects import Projects

        return Projects(self.database, self.clock)

    @cached_property
    def idempotency(self) -> "Idempotency":
        from tollkeeper.services.tenants.idempotency import Idempotency

        return Idempotency(self.vault, self.clock)

    @cached_property
    def project_keys(self) -> "ProjectKeys":
        from tollkeeper.services.tenants.project_keys import ProjectKeys

        permissions = self.settings.auth.project_key_default_permissions
        return ProjectKeys(self.database, self.idempotency, self.clock, permissions)

    @cached_property
    def admin_keys(self) -> "AdminKeys":
        from tollkeeper.services.tenants.admin_keys import AdminKeys

        return AdminKeys(self.database, self.clock)

    @property
    def default_threshold(self) -> int:
        """In basis points."""
        judge = self.settings.judge
        return (
            DEFAULT_THRESHOLD_BASIS_POINTS
            if judge is None
            else judge.default_threshold_basis_points
        )

    @cached_property
    def policy_directory(self) -> "PolicyDirectory":
        from tollkeeper.services.policies.directory import PolicyDirectory

        return PolicyDirectory(self.default_threshold, judge_format(self.settings))

    @property
    def compared_judge(self) -> JudgeFormat | None:
        """The judge whose present scores compare with those at calibration. None without a judge, or if
        another model, the first judge, answers some questions."""
        judge = self.settings.judge
        return None if judge is None or judge.first.backend else judge_format(self.settings)

    @cached_property
    def calibrations(self) -> "Calibrations":
        from tollkeeper.services.policies.calibrations import Calibrations

        return Calibrations(self.database, self.clock)

    @cached_property
    def policies(self) -> "Policies":
        from tollkeeper.services.policies.policies import Policies

        return Policies(self.database, self.idempotency, self.clock, self.policy_directory)

    @cached_property
    def project_limits(self) -> DefaultLimits:
        limits = self.settings.limits
        bound = self.settings.ledger.overage_bound_usd
        return DefaultLimits(
            limits.requests_per_minute,
            limits.concurrency,
            overage_bound_picousd=picousd_from_usd(bound) if bound else None,
        )

    @cached_property
    def accounts(self) -> "Accounts":
        from tollkeeper.services.ledger.accounts import Accounts

        return Accounts(self.database, self.project_limits)

    @cached_property
    def caps(self) -> "Caps":
        from tollkeeper.services.ledger.caps import Caps

        return Caps(self.database, self.project_limits)

    @cached_property
    def costs(self) -> "Costs":
        from tollkeeper.services.ledger.costs import Costs

        return Costs(self.database, self.vault, self.clock)

    @cached_property
    def payments(self) -> "Payments":
        from tollkeeper.services.ledger.payments import Payments

        return Payments(self.database, self.project_limits)

    @cached_property
    def statements(self) -> "Statements":
        from tollkeeper.services.ledger.statements import Statements

        return Statements(self.database)

    @cached_property
    def audit(self) -> "Audit":
        from tollkeeper.services.audit import Audit

        retention_days = self.settings.audit.retention_days
        return Audit(self.database, self.clock, retention_days=retention_days)


def judge_format(settings: Settings) -> JudgeFormat | None:
    """What the judge's scores depend on."""
    judge = settings.judge
    return None if judge is None else JudgeFormat(judge.model, prompt_format())
