"""Restricts the services for users with the role `organization`: these users may use only the use
cases that this module lists, and only for objects of their own organization.

So a page that forgets to filter by organization gets an error instead of another tenant's data.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import NotFound, PermissionDenied
from tollkeeper.services.use_cases import Services

Arguments = tuple[Any, ...]
# Tells whether the arguments of a use case refer to an object of the organization.
Check = Callable[[Services, OrganizationId, Arguments], Awaitable[bool]]


async def _is_own_organization(_: Services, own_id: OrganizationId, arguments: Arguments) -> bool:
    return bool(arguments[0] == own_id)


async def _is_own_project(services: Services, own_id: OrganizationId, arguments: Arguments) -> bool:
    return (await services.projects.project_show(arguments[0])).organization_id == own_id


async def _is_own_policy(services: Services, own_id: OrganizationId, arguments: Arguments) -> bool:
    return await services.policies.policy_organization(arguments[0]) == own_id


async def _is_own_idempotent_request(
    _: Services, own_id: OrganizationId, arguments: Arguments
) -> bool:
    """Checks a use case whose last argument is an `IdempotentRequest`."""
    return bool(arguments[-1].organization_id == own_id)


async def _creates_default_key(
    services: Services, own_id: OrganizationId, arguments: Arguments
) -> bool:
    """Tells whether the new key's project belongs to the organization. Raises PermissionDenied if
    permissions or an expiry are chosen: the API for organizations gives every new key the default
    permissions and no expiry, so an organization's users may not choose them in the console
    either."""
    _project_id, _name, permissions, expires_in_s = arguments
    if permissions is not None:
        raise PermissionDenied(
            "Only operators may choose the permissions of a key.", param="permission"
        )
    if expires_in_s is not None:
        raise PermissionDenied(
            "Only operators may choose when a key expires.", param="expires_in_days"
        )
    return await _is_own_project(services, own_id, arguments)


# The allowed use cases, each with the check of its arguments: all use cases that the API for
# organizations allows, and all use cases that the pages for them read.
_USE_CASES: dict[str, Check] = {
    "organizations.organization_show": _is_own_organization,
    "projects.project_list": _is_own_organization,
    "projects.project_show": _is_own_project,
    "projects.project_archive": _is_own_organization,
    "project_keys.project_key_list": _is_own_project,
    "project_keys.project_key_list_of_organization": _is_own_organization,
    "project_keys.project_key_create_by_operator": _creates_default_key,
    "admin_keys.admin_key_list": _is_own_organization,
    "admin_keys.admin_key_revoke": _is_own_organization,
    "policies.policy_list": _is_own_organization,
    "policies.policy_organization": _is_own_policy,
    "policies.policy_show": _is_own_organization,
    "policies.policy_versions": _is_own_organization,
    "policies.policy_create": _is_own_idempotent_request,
    "policies.policy_edit": _is_own_organization,
    "policies.policy_pause": _is_own_organization,
    "policies.effective_policy_list": _is_own_organization,
    "policy_statistics.policy_counts": _is_own_organization,
    "policy_statistics.policy_report": _is_own_organization,
    "policy_statistics.policy_drift": _is_own_organization,
    "costs.whole_cost_report": _is_own_organization,
    "traffic.cache_savings": _is_own_organization,
    "ledger_overview.costs_by_hour": _is_own_organization,
    "accounts.credit_show": _is_own_organization,
    "accounts.credit_list": _is_own_organization,
    "accounts.overage_show": _is_own_organization,
    "accounts.limit_show": _is_own_project,
    "caps.cap_show": _is_own_organization,
    "calibrations.calibration_list": _is_own_organization,
    "statements.statement_show": _is_own_organization,
}
# Attributes of `Services` without any tenant's data.
_SHARED = frozenset({"clock", "catalog", "default_threshold"})


class _OwnService:
    """Restricts one attribute of `Services`, such as `projects`."""

    def __init__(self, services: Services, own_id: OrganizationId, service_name: str) -> None:
        self._services = services
        self._own_id = own_id
        self._service_name = service_name

    def __getattr__(self, name: str) -> Any:
        if (self._service_name, name) == ("organizations", "organization_list"):
            return self._organization_list
        check = _USE_CASES.get(f"{self._service_name}.{name}")
        if check is None:
            raise PermissionDenied("Users of an organization may not do this.")
        use_case = getattr(getattr(self._services, self._service_name), name)

        async def checked(*arguments: Any, **options: Any) -> Any:
            # The checks read only positional arguments, so an id must not be a keyword argument.
            assert arguments, "the id of the object is a positional argument"
            try:
                is_own = await check(self._services, self._own_id, arguments)
            except NotFound:
                is_own = False
            if not is_own:
                # The error is the same for a missing id and for another organization's id. So the
                # user cannot find out which ids exist.
                raise NotFound(f"There is no {arguments[0]}.")
            return await use_case(*arguments, **options)

        return checked

    async def _organization_list(self) -> list[Any]:
        return [await self._services.organizations.organization_show(self._own_id)]


class _OwnServices:
    def __init__(self, services: Services, own_id: OrganizationId) -> None:
        self._services = services
        self._own_id = own_id

    def __getattr__(self, service_name: str) -> Any:
        if service_name in _SHARED:
            return getattr(self._services, service_name)
        return _OwnService(self._services, self._own_id, service_name)


def own_services(services: Services, organization_id: OrganizationId) -> Services:
    return cast("Services", _OwnServices(services, organization_id))
