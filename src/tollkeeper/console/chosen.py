"""Finds the organization that the URL names, for pages that show one organization at a time."""

from dataclasses import dataclass

from starlette.requests import Request

from tollkeeper.console.context import services_of
from tollkeeper.console.forms import optional, organization_id
from tollkeeper.domain.organization import Organization


@dataclass(frozen=True, slots=True)
class ChosenOrganization:
    """Contains all organizations, and the selected organization, which is None if no organization
    exists."""

    organization: Organization | None
    all: tuple[Organization, ...]


async def chosen_organization(request: Request) -> ChosenOrganization:
    """Returns the organization that the URL names. If the URL names none, returns the first
    organization."""
    organizations = services_of(request).organizations
    every = tuple(await organizations.organization_list())
    named = optional(request.query_params, "organization")
    if named is not None:
        return ChosenOrganization(
            await organizations.organization_show(organization_id(named)), every
        )
    return ChosenOrganization(every[0] if every else None, every)
