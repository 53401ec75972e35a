"""Restricts the services for users with the role `organization`: these users may use only the use
cases that this module lists, and only for objects of their own organization.

So a page that forgets to filter by organization gets an error instead of another tenant's data.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import NotFound, PermissionDenied
from tollkeeper.policies.policy import Policy, Rule
from tollkeeper.setup.services import Services
from tollkeeper.tenants.idempotency import IdempotentRequest
from tollkeeper.tenants.organization import Organization, ProjectKey

P = ParamSpec("P")
Id = TypeVar("Id")
T = TypeVar("T")
UseCase: TypeAlias = Callable[Concatenate[Id, P], Awaitable[T]]


class _Own:
    """Restricts use cases by their first argument, which is an id of the organization or of one of its
    objects."""

    def __init__(self, services: Services, organization_id: OrganizationId) -> None:
        self._services = services
        self.id = organization_id

    def organization(
        self, use_case: UseCase[OrganizationId, P, T]
    ) -> UseCase[OrganizationId, P, T]:
        return self._checked(use_case, self._owner_itself)

    def project(self, use_case: UseCase[ProjectId, P, T]) -> UseCase[ProjectId, P, T]:
        return self._checked(use_case, self._owner_of_project)

    def policy(self, use_case: UseCase[str, P, T]) -> UseCase[str, P, T]:
        return self._checked(use_case, self._services.policies.policy_organization)

    def _checked(
        self, use_case: UseCase[Id, P, T], owner: Callable[[Id], Awaitable[OrganizationId]]
    ) -> UseCase[Id, P, T]:
        async def checked(identity: Id, /, *arguments: P.args, **options: P.kwargs) -> T:
            try:
                is_own = await owner(identity) == self.id
            except NotFound:
                is_own = False
            if not is_own:
                # The error is the same for a missing id and for another organization's id. So the
                # user cannot find out which ids exist.
                raise NotFound(f"There is no {identity}.")
            return await use_case(identity, *arguments, **options)

        return checked

    @staticmethod
    async def _owner_itself(organization_id: OrganizationId) -> OrganizationId:
        return organization_id

    async def _owner_of_project(self, project_id: ProjectId) -> OrganizationId:
        return (await self._services.projects.project_show(project_id)).organization_id


class OwnServices:
    """Has the use cases that the API for organizations allows, and those that the pages for an
    organization's users read."""

    def __init__(self, services: Services, organization_id: OrganizationId) -> None:
        own = _Own(services, organization_id)
        # These contain no tenant's data.
        self.clock = services.clock
        self.catalog = services.catalog
        self.default_threshold = services.default_threshold
        self.organizations = _Organizations(services, own)
        self.projects = _Projects(services, own)
        self.project_keys = _ProjectKeys(services, own)
        self.admin_keys = _AdminKeys(services, own)
        self.policies = _Policies(services, own)
        self.policy_statistics = _PolicyStatistics(services, own)
        self.calibrations = _Calibrations(services, own)
        self.costs = _Costs(services, own)
        self.traffic = _Traffic(services, own)
        self.ledger_overview = _LedgerOverview(services, own)
        self.accounts = _Accounts(services, own)
        self.caps = _Caps(services, own)
        self.statements = _Statements(services, own)


class _Organizations:
    def __init__(self, services: Services, own: _Own) -> None:
        self.organization_show = own.organization(services.organizations.organization_show)
        self._own_id = own.id

    async def organization_list(self) -> Sequence[Organization]:
        return [await self.organization_show(self._own_id)]


class _Projects:
    def __init__(self, services: Services, own: _Own) -> None:
        projects = services.projects
        self.project_list = own.organization(projects.project_list)
        self.project_show = own.project(projects.project_show)
        self.project_archive = own.organization(projects.project_archive)


class _ProjectKeys:
    def __init__(self, services: Services, own: _Own) -> None:
        keys = services.project_keys
        self.project_key_list = own.project(keys.project_key_list)
        self.project_key_list_of_organization = own.organization(
            keys.project_key_list_of_organization
        )
        self._create = own.project(keys.project_key_create_by_operator)

    async def project_key_create_by_operator(
        self,
        project_id: ProjectId,
        name: str,
        permissions: Sequence[str] | None,
        expires_in_s: int | None,
    ) -> tuple[ProjectKey, str]:
        """Raises PermissionDenied if permissions or an expiry are chosen: the API for organizations gives
        every new key the default permissions and no expiry, so an organization's users may not choose
        them in the console either."""
        if permissions is not None:
            raise PermissionDenied(
                "Only operators may choose the permissions of a key.", param="permission"
            )
        if expires_in_s is not None:
            raise PermissionDenied(
                "Only operators may choose when a key expires.", param="expires_in_days"
            )
        return await self._create(project_id, name, permissions, expires_in_s)


class _AdminKeys:
    def __init__(self, services: Services, own: _Own) -> None:
        self.admin_key_list = own.organization(services.admin_keys.admin_key_list)
        self.admin_key_revoke = own.organization(services.admin_keys.admin_key_revoke)


class _Policies:
    def __init__(self, services: Services, own: _Own) -> None:
        policies = services.policies
        self.policy_list = own.organization(policies.policy_list)
        self.policy_organization = own.policy(policies.policy_organization)
        self.policy_show = own.organization(policies.policy_show)
        self.policy_versions = own.organization(policies.policy_versions)
        self.policy_edit = own.organization(policies.policy_edit)
        self.policy_pause = own.organization(policies.policy_pause)
        self.effective_policy_list = own.organization(policies.effective_policy_list)
        self._own_id = own.id
        self._create = policies.policy_create

    async def policy_create(
        self, name: str, description: str, draft: Rule, request: IdempotentRequest
    ) -> Policy:
        if request.organization_id != self._own_id:
            raise NotFound(f"There is no {request.organization_id}.")
        return await self._create(name, description, draft, request)


class _PolicyStatistics:
    def __init__(self, services: Services, own: _Own) -> None:
        statistics = services.policy_statistics
        self.policy_counts = own.organization(statistics.policy_counts)
        self.policy_report = own.organization(statistics.policy_report)
        self.policy_drift = own.organization(statistics.policy_drift)


class _Calibrations:
    def __init__(self, services: Services, own: _Own) -> None:
        self.calibration_list = own.organization(services.calibrations.calibration_list)


class _Costs:
    def __init__(self, services: Services, own: _Own) -> None:
        self.whole_cost_report = own.organization(services.costs.whole_cost_report)


class _Traffic:
    def __init__(self, services: Services, own: _Own) -> None:
        self.cache_savings = own.organization(services.traffic.cache_savings)


class _LedgerOverview:
    def __init__(self, services: Services, own: _Own) -> None:
        self.costs_by_hour = own.organization(services.ledger_overview.costs_by_hour)


class _Accounts:
    def __init__(self, services: Services, own: _Own) -> None:
        accounts = services.accounts
        self.credit_show = own.organization(accounts.credit_show)
        self.credit_list = own.organization(accounts.credit_list)
        self.overage_show = own.organization(accounts.overage_show)
        self.limit_show = own.project(accounts.limit_show)


class _Caps:
    def __init__(self, services: Services, own: _Own) -> None:
        self.cap_show = own.organization(services.caps.cap_show)


class _Statements:
    def __init__(self, services: Services, own: _Own) -> None:
        self.statement_show = own.organization(services.statements.statement_show)


# What a page gets that an organization's users may see, too.
AnyServices: TypeAlias = Services | OwnServices
