"""Restricts the services for users of one organization to the listed use cases and to their own
organization's objects. A page that forgets to filter gets an error instead of other tenants'
data."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import NotFound, PermissionDenied
from tollkeeper.services.use_cases import Services

Arguments = tuple[Any, ...]
# Tells whether the arguments belong to the organization.
Check = Callable[[Services, OrganizationId, Arguments], Awaitable[bool]]


async def _names_it(_: Services, own: OrganizationId, arguments: Arguments) -> bool:
    return bool(arguments[0] == own)


async def _names_its_project(services: Services, own: OrganizationId, arguments: Arguments) -> bool:
    return (await services.projects.project_show(arguments[0])).organization_id == own


async def _names_its_policy(services: Services, own: OrganizationId, arguments: Arguments) -> bool:
    return await services.policies.policy_organization(arguments[0]) == own


async def _is_its_request(_: Services, own: OrganizationId, arguments: Arguments) -> bool:
    return bool(arguments[-1].organization_id == own)


async def _makes_a_plain_key(services: Services, own: OrganizationId, arguments: Arguments) -> bool:
    """Rejects chosen permissions, because the organization API always gives new keys the default
    permissions."""
    if arguments[2] is not None:
        raise PermissionDenied("The permissions of a key are chosen by operators.")
    return await _names_its_project(services, own, arguments)


# Everything that the organization API allows, and what the pages need to show it.
_USE_CASES: dict[str, Check] = {
    "organizations.organization_show": _names_it,
    "projects.project_list": _names_it,
    "projects.project_show": _names_its_project,
    "projects.project_archive": _names_it,
    "project_keys.project_key_list": _names_its_project,
    "project_keys.project_key_list_of_organization": _names_it,
    "project_keys.project_key_create_by_operator": _makes_a_plain_key,
    "admin_keys.admin_key_list": _names_it,
    "admin_keys.admin_key_revoke": _names_it,
    "policies.policy_list": _names_it,
    "policies.policy_organization": _names_its_policy,
    "policies.policy_show": _names_it,
    "policies.policy_versions": _names_it,
    "policies.policy_create": _is_its_request,
    "policies.policy_edit": _names_it,
    "policies.policy_pause": _names_it,
    "policies.effective_policy_list": _names_it,
    "policy_statistics.policy_counts": _names_it,
    "policy_statistics.policy_report": _names_it,
    "policy_statistics.policy_drift": _names_it,
    "costs.whole_cost_report": _names_it,
    "traffic.cache_savings": _names_it,
    "ledger_overview.costs_by_hour": _names_it,
    "billing.credit_show": _names_it,
    "billing.credit_list": _names_it,
    "billing.overage_show": _names_it,
    "billing.limit_show": _names_its_project,
    "caps.cap_show": _names_it,
    "calibrations.calibration_list": _names_it,
    "statements.statement_show": _names_it,
}
# These contain no tenant data.
_SHARED = frozenset({"clock", "catalog", "default_threshold"})


class _OwnNoun:
    def __init__(self, services: Services, own: OrganizationId, noun: str) -> None:
        self._services = services
        self._own = own
        self._noun = noun

    def __getattr__(self, name: str) -> Any:
        if (self._noun, name) == ("organizations", "organization_list"):
            return self._organization_list
        check = _USE_CASES.get(f"{self._noun}.{name}")
        if check is None:
            raise PermissionDenied("This is not for people of an organization.")
        use_case = getattr(getattr(self._services, self._noun), name)

        async def checked(*arguments: Any, **options: Any) -> Any:
            # Ids in keyword arguments would not be checked.
            assert arguments, "what belongs to an organization is named by position"
            if not await check(self._services, self._own, arguments):
                # The same error as for an object that does not exist.
                raise NotFound(f"There is no {arguments[0]}.")
            return await use_case(*arguments, **options)

        return checked

    async def _organization_list(self) -> list[Any]:
        return [await self._services.organizations.organization_show(self._own)]


class _OwnServices:
    def __init__(self, services: Services, own: OrganizationId) -> None:
        self._services = services
        self._own = own

    def __getattr__(self, noun: str) -> Any:
        if noun in _SHARED:
            return getattr(self._services, noun)
        return _OwnNoun(self._services, self._own, noun)


def own_services(services: Services, organization_id: OrganizationId) -> Services:
    return cast("Services", _OwnServices(services, organization_id))
