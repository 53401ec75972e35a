"""`tollkeeper policy`: creates, edits, publishes, pauses, resumes and tries out policies."""

from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID, uuid4

import msgspec
import typer
from msgspec import UNSET

from tollkeeper.api.organization.policies import policy_view
from tollkeeper.api.wire import organization as wire
from tollkeeper.bootstrap.administration import judge_format
from tollkeeper.cli.amounts import share_of, threshold_of
from tollkeeper.cli.arguments import NameArgument, OrganizationArgument
from tollkeeper.cli.command import (
    Invocation,
    command,
    noun_app,
    run_with_services,
    service_command,
)
from tollkeeper.cli.output import Listing, Record
from tollkeeper.cli.policy_trial import (
    ReportOptions,
    TrialDirection,
    first_judge_settings,
    run_trial,
    trial_report,
)
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.calibration import CONFIDENCE, Fitted, guarantees
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.policy import Direction, JudgeFormat, Mode, Policy, Rule, Scope
from tollkeeper.domain.trial import labelled_values
from tollkeeper.services.policies.labelled_texts import read_texts
from tollkeeper.services.policies.policies import OPERATION_CREATE
from tollkeeper.services.policies.trial import Trial, TrialText
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
        help="The least value of a match: a percentage (57.5%), basis points (5750), or: default.",
        show_default="judge.default_threshold_basis_points",
    ),
]
ErrorRate = Annotated[
    float | None,
    typer.Option(metavar="1%", help="Find the threshold for it.", parser=share_of),
]
TrialThreshold = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The least value of a match: a percentage (57.5%) or basis points (5750).",
        parser=threshold_of,
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
    idempotent_request = IdempotentRequest(
        identity, OPERATION_CREATE, f"cli-{uuid4()}", msgspec.json.encode(given)
    )
    created = await services.policies.policy_create(
        given.name, given.description, draft, idempotent_request
    )
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
        raise typer.BadParameter("Give a field to change, for example --mode enforcing.")
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
    """Converts the given options to an API request, which checks the limits of every field."""
    given = {field: value for field, value in fields.items() if value is not None}
    if projects:
        named = [await services.names.project_named(one, organization) for one in projects]
        given = {"scope": Scope.PROJECTS, **given, "project_ids": list(map(str, named))}
    if threshold is not None:
        number = None if threshold == _DEFAULT else threshold_of(threshold)
        given["match_threshold_basis_points"] = number
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
    return _record(services, await _policy_named(services, policy))


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
        str | None, typer.Option(metavar="QUESTION?", help="The yes-or-no question.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="ID", help="A policy whose rule is asked.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A text to ask about; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines or CSV with the fields text (or request and answer) and label (yes or no).",
        ),
    ] = None,
    direction: Annotated[
        TrialDirection, typer.Option(help="Whether the texts are requests or answers.")
    ] = TrialDirection.REQUEST,
    threshold: TrialThreshold = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a calibration, and show calibrated values.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Store the calibration for --policy, not yet active.")
    ] = False,
    first: Annotated[
        bool, typer.Option("--first", help="Ask the small judge of `judge.first`.")
    ] = False,
    false_denials: ErrorRate = None,
    misses: ErrorRate = None,
    confidence: Annotated[
        float, typer.Option(metavar="95%", help="How sure such a threshold is.", parser=share_of)
    ] = "95%",  # type: ignore[assignment]  # the parser reads the default too
) -> None:
    """Ask the judge a rule about texts; with labels, find the threshold that fits best."""
    if (text is None) == (file is None):
        raise typer.BadParameter("Give either --text or --file.")
    if (rule is None) == (policy is None):
        raise typer.BadParameter("Give either --rule or --policy.")
    if save and policy is None:
        raise typer.BadParameter("--save needs --policy.")
    if first and (calibrate or save):
        raise typer.BadParameter("A calibration belongs to the judge, and not to the first judge.")
    if first and false_denials is not None:
        raise typer.BadParameter("The first judge denies nothing: give --misses.")
    settings = invocation.settings()
    if first:
        settings = first_judge_settings(settings)
    texts = (
        [TrialText(one) for one in text or ()] if file is None else read_texts(file.read_bytes())
    )
    if rule is None:
        found = run_with_services(invocation, lambda services: _policy_named(services, str(policy)))
        rule = (found.draft if found.published is None else found.published.rule).rule
    trial = run_trial(settings, rule, texts, direction, quiet=invocation.as_json)
    fitted = trial.fitted() if calibrate or save else None
    if fitted is not None:
        trial = trial.calibrated(fitted.calibration)
    options = ReportOptions(threshold, false_denials, misses, confidence, of_first=first)
    report = trial_report(trial, settings, options, fitted)
    if save and fitted is not None:
        _save_calibration(invocation, found, judge_format(settings), trial, fitted, report)
    show_report(report, as_json=invocation.as_json)


def _save_calibration(
    invocation: Invocation,
    policy: Policy,
    judge: JudgeFormat | None,
    trial: Trial,
    fitted: Fitted,
    report: Report,
) -> None:
    assert judge is not None, "a judge was asked"
    measured = {
        **fitted.report(),
        "auc": report.content["calibration"]["auc"],
        "guarantees": guarantees(*labelled_values(trial.samples), CONFIDENCE),
    }
    run_with_services(
        invocation,
        lambda services: services.calibrations.calibration_create(
            policy.organization_id, policy.id, trial.rule, judge, fitted, measured
        ),
    )


@service_command(app, "calibrations", example="tollkeeper policy calibrations 'No secrets'")
async def calibration_list(services: Services, policy: PolicyArgument) -> Listing:
    """List a policy's calibrations, newest first."""
    found = await _policy_named(services, policy)
    stored = await services.calibrations.calibration_list(found.organization_id, found.id)
    active = None if found.calibration is None else found.calibration.number
    return Listing(
        [
            {
                "number": one.number,
                "active": one.number == active,
                "judge_model": one.judge.model,
                "prompt_format": one.judge.prompt_format,
                "labels": one.report["labels"],
                "error_before": one.report["before"]["calibration_error"],
                "error_after": one.report["after"]["calibration_error"],
                "auc": one.report["auc"],
                "created_at": one.created_at,
                "rule": one.rule,
            }
            for one in stored
        ],
        columns=("number", "active", "judge_model", "labels", "error_before", "error_after", "auc"),
        optional=("auc",),
    )


@service_command(app, "calibrate", example="tollkeeper policy calibrate 'No secrets' 2")
async def calibration_activate(
    services: Services,
    policy: PolicyArgument,
    number: Annotated[
        int, typer.Argument(metavar="N", help="A calibration's number; 0: none.", min=0)
    ],
) -> Record:
    """Apply one of a policy's calibrations to its verdicts from now on."""
    found = await _policy_named(services, policy)
    changed = await services.calibrations.calibration_activate(
        found.organization_id, found.id, number or None
    )
    active = changed.calibration
    return Record({"policy_id": found.id, "calibration": None if active is None else active.number})


async def _policy_named(services: Services, policy: str) -> Policy:
    policy = await services.names.policy_named(policy)
    organization = await services.policies.policy_organization(policy)
    return await services.policies.policy_show(organization, policy)


def _record(services: Services, policy: Policy) -> Record:
    return Record(_view(services, policy))


def _view(services: Services, policy: Policy) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(policy_view(policy, services.default_threshold))
    return shown
