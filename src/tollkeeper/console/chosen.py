"""Finds the organization that a page is about, and carries it from page to page in the URL.

The URL remembers it, not a cookie: two tabs may be about two organizations, and neither may send a form
about the other's."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from tollkeeper.console.context import services_of
from tollkeeper.console.forms import optional, organization_id
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import NotFound
from tollkeeper.tenants.organization import Organization, ProjectKey

# The query parameter of pages that show one organization, or filter by it.
CHOSEN = "organization"
# The same for all other pages: they only pass it on.
RECENT = "recent"


@dataclass(frozen=True, slots=True)
class ChosenOrganization:
    """Contains all organizations, and the selected organization, which is None if no organization
    exists."""

    organization: Organization | None
    all: tuple[Organization, ...]
    # Whether somebody chose it. The first organization of all is only a default.
    is_named: bool = False


async def chosen_organization(
    request: Request, of: OrganizationId | None = None
) -> ChosenOrganization:
    """Returns the organization `of`, otherwise the one that the URL names, otherwise the first one."""
    organizations = services_of(request).organizations
    every = tuple(await organizations.organization_list())
    named = optional(request.query_params, CHOSEN)
    if of is None and named is not None:
        of = organization_id(named)
    if of is not None:
        return ChosenOrganization(await organizations.organization_show(of), every, is_named=True)
    return ChosenOrganization(every[0] if every else None, every)


def recent_organization(request: Request, shown: Mapping[str, object]) -> OrganizationId | None:
    """Returns the organization of the object that the page shows, otherwise the one that the user chose
    on an earlier page. `shown` has the page's values."""
    match shown:
        case (
            {"chosen": ChosenOrganization(organization=Organization(id=found), is_named=True)}
            | {"organization": Organization(id=found)}
            | {"key": ProjectKey(organization_id=found)}
        ):
            return found
    for name in (CHOSEN, RECENT):
        try:
            return organization_id(request.query_params.get(name, ""))
        except NotFound:
            continue
    return None
