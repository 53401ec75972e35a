"""`tollkeeper policy`: publishes, pauses, resumes and tries out policies."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tollkeeper.api.organization.policies import policy_view
from tollkeeper.cli.arguments import OrganizationArgument
from tollkeeper.cli.command import Invocation, command, noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.cli.policy_trial import TrialDirection, read_texts, run_trial, trial_report
from tollkeeper.cli.report import show_report
from tollkeeper.domain.policy import Policy
from tollkeeper.domain.trial import THRESHOLD_MAX, THRESHOLD_MIN
from tollkeeper.services.policies.trial import TrialText
from tollkeeper.services.use_cases import Services

app = noun_app("Policies of an organization.")

PolicyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The policy's name or id.", show_default=False)
]
Revision = Annotated[
    int,
    typer.Option(
        "--revision",
        metavar="N",
        help="The revision of the policy that you have read.",
        show_default=False,
    ),
]


@service_command(app, "list", example="tollkeeper policy list Acme")
async def policy_list(services: Services, organization: OrganizationArgument) -> Listing:
    """List an organization's policies, oldest first."""
    found = await services.policies.policy_list(
        await services.names.organization_named(organization)
    )
    return Listing(
        [_view(services, policy) for policy in found],
        columns=("id", "name", "state", "revision", "has_unpublished_changes", "current_version"),
        optional=("current_version", "has_unpublished_changes"),
    )


@service_command(app, "show", example="tollkeeper policy show 'No secrets'")
async def policy_show(services: Services, policy: PolicyArgument) -> Record:
    """Show one policy: its draft and what is published."""
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    return _record(services, await services.policies.policy_show(organization, policy))


@service_command(app, "publish", example="tollkeeper policy publish 'No secrets' --revision 1")
async def policy_publish(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Publish a policy's draft as its next version."""
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_publish(organization, policy, revision)
    return _record(services, found)


@service_command(app, "pause", example="tollkeeper policy pause 'No secrets' --revision 2")
async def policy_pause(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Stop applying a published policy."""
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_pause(organization, policy, revision)
    return _record(services, found)


@service_command(app, "resume", example="tollkeeper policy resume 'No secrets' --revision 3")
async def policy_resume(services: Services, policy: PolicyArgument, revision: Revision) -> Record:
    """Apply a paused policy again, as it was published."""
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    found = await services.policies.policy_resume(organization, policy, revision)
    return _record(services, found)


@command(app, "try", example="tollkeeper policy try --rule 'Is it rude?' --text 'Go away.'")
def policy_try(
    invocation: Invocation,
    rule: Annotated[
        str, typer.Option(metavar="QUESTION?", help="The yes-or-no question.", show_default=False)
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A text to ask about; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="JSONL", help='A file with {"text": ..., "label": true or false} per line.'
        ),
    ] = None,
    direction: Annotated[
        TrialDirection, typer.Option(help="Whether the texts are requests or answers.")
    ] = TrialDirection.REQUEST,
    threshold: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The least probability of a match, in basis points.",
            min=THRESHOLD_MIN,
            max=THRESHOLD_MAX,
            show_default="judge.default_threshold_basis_points",
        ),
    ] = None,
) -> None:
    """Ask the judge a rule about texts; with labels, find the threshold that fits best."""
    if (text is None) == (file is None):
        raise typer.BadParameter("Give either --text or --file.")
    texts = [TrialText(one) for one in text or ()] if file is None else read_texts(file)
    settings = invocation.settings()
    trial = run_trial(settings, rule, texts, direction, quiet=invocation.as_json)
    show_report(trial_report(trial, settings, threshold), as_json=invocation.as_json)


def _record(services: Services, policy: Policy) -> Record:
    return Record(_view(services, policy))


def _view(services: Services, policy: Policy) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(policy_view(policy, services.default_threshold))
    return shown
