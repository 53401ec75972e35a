"""`tollkeeper policy`: creates, edits, publishes, pauses, resumes and tries out policies."""

from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID, uuid4

import msgspec
import typer
from msgspec import UNSET

from tollkeeper.api.organization.policies import policy_view
from tollkeeper.api.wire import organization as wire
from tollkeeper.cli.arguments import NameArgument, OrganizationArgument
from tollkeeper.cli.command import Invocation, command, noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.cli.policy_trial import TrialDirection, read_texts, run_trial, trial_report
from tollkeeper.cli.report import show_report
from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.policy import Direction, Mode, Policy, Rule, Scope
from tollkeeper.domain.trial import THRESHOLD_MAX, THRESHOLD_MIN
from tollkeeper.services.policies.policies import OPERATION_CREATE
from tollkeeper.services.policies.trial import TrialText
from tollkeeper.services.tenants.idempotency import IdempotentRequest
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
DescriptionOption = Annotated[
    str | None, typer.Option("--description", metavar="TEXT", help="What the policy is for.")
]
DirectionOption = Annotated[
    Direction | None,
    typer.Option(help="Whether requests, responses or both are judged.", show_default=False),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(help="Whether a match is only counted, or also denied.", show_default=False),
]
ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        help="Whether the policy applies to all projects, to those of --project, or to calls that "
        "name it.",
        show_default=False,
    ),
]
ProjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--project",
        metavar="P",
        help="A project that the policy applies to; may be repeated. The scope is then projects, "
        "unless --scope says otherwise.",
    ),
]
ThresholdOption = Annotated[
    str | None,
    typer.Option(
        "--threshold",
        metavar="N",
        help=f"The least probability of a match, in basis points ({THRESHOLD_MIN} to "
        f"{THRESHOLD_MAX}), or: default.",
        show_default="judge.default_threshold_basis_points",
    ),
]
W = TypeVar("W", wire.PolicyCreate, wire.PolicyEdit)
_DEFAULT = "default"
_RULE_FIELDS = tuple(field for field in Rule.__slots__ if field != "project_ids")


@service_command(
    app, "create", example="tollkeeper policy create Acme Polite --rule 'Is the text rude?'"
)
async def policy_create(
    services: Services,
    organization: OrganizationArgument,
    name: NameArgument,
    rule: Annotated[
        str, typer.Option(metavar="QUESTION?", help="The yes-or-no question.", show_default=False)
    ],
    description: DescriptionOption = None,
    direction: DirectionOption = None,
    mode: ModeOption = None,
    scope: ScopeOption = None,
    project: ProjectsOption = None,
    threshold: ThresholdOption = None,
) -> Record:
    """Create a policy as a draft, which applies to nothing until it is published."""
    identity = await services.names.organization_named(organization)
    await services.organizations.organization_show(identity)
    fields = {"name": name, "rule": rule, "description": description, "direction": direction}
    fields |= {"mode": mode, "scope": scope}
    given = await _given(services, identity, fields, project, threshold, wire.PolicyCreate)
    draft = Rule(
        project_ids=tuple(map(ProjectId, map(UUID, given.project_ids))),
        **{field: getattr(given, field) for field in _RULE_FIELDS},
    )
    # Each run of the command creates one policy.
    asked = IdempotentRequest(
        identity, OPERATION_CREATE, f"cli-{uuid4()}", msgspec.json.encode(given)
    )
    created = await services.policies.policy_create(given.name, given.description, draft, asked)
    return _record(services, created)


@service_command(
    app, "edit", example="tollkeeper policy edit 'No secrets' --revision 1 --mode enforcing"
)
async def policy_edit(
    services: Services,
    policy: PolicyArgument,
    revision: Revision,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Another name.")] = None,
    rule: Annotated[
        str | None, typer.Option(metavar="QUESTION?", help="Another yes-or-no question.")
    ] = None,
    description: DescriptionOption = None,
    direction: DirectionOption = None,
    mode: ModeOption = None,
    scope: ScopeOption = None,
    project: ProjectsOption = None,
    threshold: ThresholdOption = None,
) -> Record:
    """Change a policy's draft. What is not given stays as it is, and so does what is published; a
    new name takes effect at once."""
    fields = {"name": name, "rule": rule, "description": description, "direction": direction}
    fields |= {"mode": mode, "scope": scope}
    if all(value is None for value in (*fields.values(), project, threshold)):
        raise typer.BadParameter("Say what to change, such as --mode enforcing.")
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    given = await _given(
        services,
        organization,
        {**fields, "revision": revision},
        project,
        threshold,
        wire.PolicyEdit,
    )
    changes = {field: getattr(given, field) for field in _RULE_FIELDS}
    if given.project_ids is not UNSET:
        changes["project_ids"] = tuple(map(ProjectId, map(UUID, given.project_ids)))
    found = await services.policies.policy_edit(
        organization,
        policy,
        revision,
        name=name,
        description=description,
        changes={field: value for field, value in changes.items() if value is not UNSET},
    )
    return _record(services, found)


async def _given(
    services: Services,
    organization: OrganizationId,
    fields: dict[str, Any],
    projects: list[str] | None,
    threshold: str | None,
    body: type[W],
) -> W:
    """The options that were given, as the API's request, which has the bounds of every field."""
    given = {field: value for field, value in fields.items() if value is not None}
    if projects:
        named = [await services.names.project_named(one, organization) for one in projects]
        given = {"scope": Scope.PROJECTS, **given, "project_ids": list(map(str, named))}
    if threshold is not None:
        number = int(threshold) if threshold.isdecimal() else threshold
        given["match_threshold_basis_points"] = None if threshold == _DEFAULT else number
    try:
        return msgspec.convert(given, body)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(str(exc).replace("`$.", "`")) from None


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
