"""`tollkeeper policy`: what an operator decides about an organization's policies."""

from typing import Annotated, Any

import msgspec
import typer

from tollkeeper.api.organization.policies import policy_view
from tollkeeper.bootstrap import Services
from tollkeeper.cli.answers import Listing, Record
from tollkeeper.cli.arguments import OrganizationArgument, organization_id
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.domain.policy import Policy

app = noun_app("Policies of an organization.")

PolicyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The policy's id.", show_default=False)
]
Revision = Annotated[
    int,
    typer.Option("--revision", metavar="N", help="The revision that was read.", show_default=False),
]


@service_command(app, "list")
async def policy_list(services: Services, organization: OrganizationArgument) -> Listing:
    """List an organization's policies, oldest first."""
    found = await services.policies.policy_list(organization_id(organization))
    return Listing(
        [_view(services, policy) for policy in found],
        columns=("id", "name", "state", "revision", "has_unpublished_changes", "current_version"),
    )


@service_command(app, "show")
async def policy_show(services: Services, policy: PolicyArgument) -> Record:
    """Show one policy: its draft and what is published."""
    organization = await services.policies.policy_organization(policy)
    return _record(services, await services.policies.policy_show(organization, policy))


@service_command(app, "publish")
async def policy_publish(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Publish a policy's draft as its next version."""
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_publish(organization, policy, revision)
    return _record(services, found)


@service_command(app, "pause")
async def policy_pause(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Stop applying a published policy."""
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_pause(organization, policy, revision)
    return _record(services, found)


@service_command(app, "resume")
async def policy_resume(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Apply a paused policy again, as it was published."""
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_resume(organization, policy, revision)
    return _record(services, found)


def _record(services: Services, policy: Policy) -> Record:
    return Record(_view(services, policy))


def _view(services: Services, policy: Policy) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(policy_view(policy, services.default_threshold))
    return shown
