"""`tollkeeper policy`: creates, edits, publishes, pauses, resumes and tries out policies. A call
matches if the judge's score for the question (`rule`), or the calibrated probability, reaches the
threshold."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID, uuid4

import msgspec
import typer
from msgspec import UNSET

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.entry.commands.amounts import share_of, threshold_of
from tollkeeper.entry.commands.arguments import NameArgument, OrganizationArgument
from tollkeeper.entry.commands.command import (
    Invocation,
    command,
    noun_app,
    run_with_services,
    service_command,
)
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.entry.commands.policy_trial import (
    ReportOptions,
    TrialDirection,
    first_judge_settings,
    run_trial,
    trial_report,
)
from tollkeeper.entry.commands.report import show_report
from tollkeeper.faces.organization.policies import policy_view
from tollkeeper.faces.wire import organization as wire
from tollkeeper.policies.calibration.rule import Fitted
from tollkeeper.policies.policies import OPERATION_CREATE
from tollkeeper.policies.policy import Direction, JudgeFormat, Mode, Policy, Rule, Scope
from tollkeeper.policies.trial.labelled_texts import read_texts
from tollkeeper.policies.trial.service import Trial, TrialText
from tollkeeper.setup.services import judge_format
from tollkeeper.tenants.idempotency import IdempotentRequest

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Manage policies, which judge requests and answers.")

PolicyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The policy's name or id.", show_default=False)
]
Revision = Annotated[
    int,
    typer.Option(
        "--revision",
        metavar="N",
        help="The policy's revision, as `policy show` prints it. The command fails if the policy has "
        "changed since then.",
        show_default=False,
    ),
]
DescriptionOption = Annotated[
    str | None, typer.Option("--description", metavar="TEXT", help="The purpose of the policy.")
]
DirectionOption = Annotated[
    Direction | None,
    typer.Option(help="Judge requests, responses or both.", show_default=False),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(
        help="Only record matches (monitoring), or reject calls that match (enforcing).",
        show_default=False,
    ),
]
ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        help="Apply the policy to all projects, to the projects given with --project, or only to calls "
        "that name the policy.",
        show_default=False,
    ),
]
ProjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--project",
        metavar="P",
        help="Apply the policy to this project. May be repeated. Without --scope, it also sets "
        "--scope to `projects`.",
    ),
]
ThresholdOption = Annotated[
    str | None,
    typer.Option(
        "--threshold",
        metavar="N",
        help="The lowest score or probability that is a match: a percentage (57.5%), basis points "
        "(5750), or `default`.",
        show_default="judge.default_threshold_basis_points",
    ),
]
FalseDenialsOption = Annotated[
    float | None,
    typer.Option(
        metavar="1%",
        help="Find a threshold that denies at most this share of the texts with the label `no`.",
        parser=share_of,
    ),
]
MissesOption = Annotated[
    float | None,
    typer.Option(
        metavar="1%",
        help="Find a threshold that misses at most this share of the texts with the label `yes`.",
        parser=share_of,
    ),
]
ConfidenceOption = Annotated[
    float,
    typer.Option(
        metavar="95%",
        help="How certain it must be that --false-denials or --misses is not exceeded.",
        parser=share_of,
    ),
]
TrialThreshold = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The lowest score or probability that is a match: a percentage (57.5%) or basis points "
        "(5750).",
        parser=threshold_of,
        show_default="judge.default_threshold_basis_points",
    ),
]
SaveOption = Annotated[
    bool,
    typer.Option(
        "--save",
        help="Fit a calibration and store it for --policy. `policy calibrate` activates it.",
    ),
]
FirstOption = Annotated[
    bool,
    typer.Option(
        "--first",
        help="Ask the first judge (the smaller model in the setting judge.first) instead of the main "
        "judge.",
    ),
]
W = TypeVar("W", wire.PolicyCreate, wire.PolicyEdit)
_DEFAULT = "default"
# Of a draft, copied from the request body. The project ids are converted separately.
_RULE_FIELDS = tuple(field for field in Rule.__slots__ if field != "project_ids")


@service_command(
    app, "create", example="tollkeeper policy create Acme Polite --rule 'Is the text rude?'"
)
async def policy_create(
    services: "Services",
    organization: OrganizationArgument,
    name: NameArgument,
    rule: Annotated[
        str,
        typer.Option(
            metavar="QUESTION?", help="The yes-or-no question to the judge.", show_default=False
        ),
    ],
    description: DescriptionOption = None,
    direction: DirectionOption = None,
    mode: ModeOption = None,
    scope: ScopeOption = None,
    project: ProjectsOption = None,
    threshold: ThresholdOption = None,
) -> Record:
    """Create a policy as a draft.

    The policy takes effect only after `policy publish`."""
    organization_id = await services.names.organization_named(organization)
    # Raises if it doesn't exist.
    await services.organizations.organization_show(organization_id)
    fields = {"name": name, "rule": rule, "description": description, "direction": direction}
    fields |= {"mode": mode, "scope": scope}
    body = await _request_body(
        services, organization_id, fields, project, threshold, wire.PolicyCreate
    )
    draft = Rule(
        project_ids=tuple(map(ProjectId, map(UUID, body.project_ids))),
        **{field: getattr(body, field) for field in _RULE_FIELDS},
    )
    # Random, so each run creates a new policy.
    idempotent_request = IdempotentRequest(
        organization_id, OPERATION_CREATE, f"cli-{uuid4()}", msgspec.json.encode(body)
    )
    created = await services.policies.policy_create(
        body.name, body.description, draft, idempotent_request
    )
    return _record(services, created)


@service_command(
    app, "edit", example="tollkeeper policy edit 'No secrets' --revision 1 --mode enforcing"
)
async def policy_edit(
    services: "Services",
    policy: PolicyArgument,
    revision: Revision,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The new name of the policy.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(metavar="QUESTION?", help="The new yes-or-no question to the judge."),
    ] = None,
    description: DescriptionOption = None,
    direction: DirectionOption = None,
    mode: ModeOption = None,
    scope: ScopeOption = None,
    project: ProjectsOption = None,
    threshold: ThresholdOption = None,
) -> Record:
    """Change the draft of a policy.

    Only the given options change. The published version stays in force until `policy publish`, but a
    new name takes effect at once."""
    fields = {"name": name, "rule": rule, "description": description, "direction": direction}
    fields |= {"mode": mode, "scope": scope}
    if all(value is None for value in (*fields.values(), project, threshold)):
        raise typer.BadParameter("Give a field to change, for example --mode enforcing.")
    policy_id = await services.names.policy_named(policy)
    organization_id = await services.policies.policy_organization(policy_id)
    body = await _request_body(
        services,
        organization_id,
        {**fields, "revision": revision},
        project,
        threshold,
        wire.PolicyEdit,
    )
    changes = {field: getattr(body, field) for field in _RULE_FIELDS}
    if body.project_ids is not UNSET:
        changes["project_ids"] = tuple(map(ProjectId, map(UUID, body.project_ids)))
    edited = await services.policies.policy_edit(
        organization_id,
        policy_id,
        revision,
        name=name,
        description=description,
        changes={field: value for field, value in changes.items() if value is not UNSET},
    )
    return _record(services, edited)


async def _request_body(
    services: "Services",
    organization_id: OrganizationId,
    fields: dict[str, Any],
    projects: list[str] | None,
    threshold: str | None,
    body_type: type[W],
) -> W:
    """Which checks every field's limits, such as a name's length."""
    body = {field: value for field, value in fields.items() if value is not None}
    if projects:
        ids = [await services.names.project_named(project, organization_id) for project in projects]
        body = {"scope": Scope.PROJECTS, **body, "project_ids": list(map(str, ids))}
    if threshold is not None:
        number = None if threshold == _DEFAULT else threshold_of(threshold)
        body["match_threshold_basis_points"] = number
    try:
        return msgspec.convert(body, body_type)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(str(exc).replace("`$.", "`")) from None


@service_command(app, "list", example="tollkeeper policy list Acme")
async def policy_list(services: "Services", organization: OrganizationArgument) -> Listing:
    """List an organization's policies, oldest first."""
    policies = await services.policies.policy_list(
        await services.names.organization_named(organization)
    )
    return Listing(
        [_view(services, policy) for policy in policies],
        columns=("id", "name", "state", "revision", "has_unpublished_changes", "current_version"),
        optional=("current_version", "has_unpublished_changes"),
    )


@service_command(app, "show", example="tollkeeper policy show 'No secrets'")
async def policy_show(services: "Services", policy: PolicyArgument) -> Record:
    """Show one policy: its draft and its published version."""
    return _record(services, await _find_policy(services, policy))


@service_command(app, "publish", example="tollkeeper policy publish 'No secrets' --revision 1")
async def policy_publish(
    services: "Services", policy: PolicyArgument, revision: Revision
) -> Record:
    """Publish a policy's draft as its next version."""
    policy_id = await services.names.policy_named(policy)
    organization_id = await services.policies.policy_organization(policy_id)
    published = await services.policies.policy_publish(organization_id, policy_id, revision)
    return _record(services, published)


@service_command(app, "pause", example="tollkeeper policy pause 'No secrets' --revision 2")
async def policy_pause(services: "Services", policy: PolicyArgument, revision: Revision) -> Record:
    """Stop applying a published policy until it is resumed."""
    policy_id = await services.names.policy_named(policy)
    organization_id = await services.policies.policy_organization(policy_id)
    paused = await services.policies.policy_pause(organization_id, policy_id, revision)
    return _record(services, paused)


@service_command(app, "resume", example="tollkeeper policy resume 'No secrets' --revision 3")
async def policy_resume(services: "Services", policy: PolicyArgument, revision: Revision) -> Record:
    """Apply the published version of a paused policy again."""
    policy_id = await services.names.policy_named(policy)
    organization_id = await services.policies.policy_organization(policy_id)
    resumed = await services.policies.policy_resume(organization_id, policy_id, revision)
    return _record(services, resumed)


@command(app, "try", example="tollkeeper policy try --rule 'Is it rude?' --text 'Go away.'")
def policy_try(
    invocation: Invocation,
    rule: Annotated[
        str | None, typer.Option(metavar="QUESTION?", help="Ask this yes-or-no question.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="ID", help="Ask this policy's question (name or id).")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Ask about this text. May be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask about the texts in this file: JSON lines or CSV with the fields text (or "
            "request and answer) and label (yes or no).",
        ),
    ] = None,
    direction: Annotated[
        TrialDirection, typer.Option(help="Judge the texts as requests or as responses.")
    ] = TrialDirection.REQUEST,
    threshold: TrialThreshold = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a calibration and show calibrated values.")
    ] = False,
    save: SaveOption = False,
    first: FirstOption = False,
    false_denials: FalseDenialsOption = None,
    misses: MissesOption = None,
    confidence: ConfidenceOption = "95%",  # type: ignore[assignment]  # Typer also parses the default.
) -> None:
    """Ask the judge a question about texts.

    If the texts have labels, the command also suggests a threshold."""
    if (text is None) == (file is None):
        raise typer.BadParameter("Give either --text or --file.")
    if (rule is None) == (policy is None):
        raise typer.BadParameter("Give either --rule or --policy.")
    if save and policy is None:
        raise typer.BadParameter("--save needs --policy.")
    if first and (calibrate or save):
        raise typer.BadParameter("The first judge has no calibration: omit --calibrate and --save.")
    if first and false_denials is not None:
        raise typer.BadParameter("The first judge never denies a call: use --misses instead.")
    settings = invocation.settings()
    if first:
        settings = first_judge_settings(settings)
    texts = (
        [TrialText(one) for one in text or ()] if file is None else read_texts(file.read_bytes())
    )
    if rule is None:
        stored = run_with_services(invocation, lambda services: _find_policy(services, str(policy)))
        rule = stored.current_rule.rule
    trial = run_trial(settings, rule, texts, direction, quiet=invocation.as_json)
    fitted = trial.fitted() if calibrate or save else None
    if fitted is not None:
        trial = trial.calibrated(fitted.calibration)
    options = ReportOptions(threshold, false_denials, misses, confidence, from_first_judge=first)
    report = trial_report(trial, settings, options, fitted)
    if save and fitted is not None:
        _save_calibration(invocation, stored, judge_format(settings), trial, fitted)
    show_report(report, as_json=invocation.as_json)


def _save_calibration(
    invocation: Invocation,
    policy: Policy,
    judge: JudgeFormat | None,
    trial: Trial,
    fitted: Fitted,
) -> None:
    assert judge is not None, "the trial has asked a judge"
    run_with_services(
        invocation,
        lambda services: services.calibrations.calibration_create(
            policy.organization_id,
            policy.id,
            trial.rule,
            judge,
            fitted,
            trial.calibration_report(fitted),
        ),
    )


@service_command(app, "calibrations", example="tollkeeper policy calibrations 'No secrets'")
async def calibration_list(services: "Services", policy: PolicyArgument) -> Listing:
    """List a policy's calibrations, newest first.

    A calibration converts the judge's scores to probabilities."""
    stored_policy = await _find_policy(services, policy)
    calibrations = await services.calibrations.calibration_list(
        stored_policy.organization_id, stored_policy.id
    )
    active = None if stored_policy.calibration is None else stored_policy.calibration.number
    return Listing(
        [
            {
                "number": calibration.number,
                "active": calibration.number == active,
                "judge_model": calibration.judge.model,
                "prompt_format": calibration.judge.prompt_format,
                "labels": calibration.report["labels"],
                "error_before": calibration.report["before"]["calibration_error"],
                "error_after": calibration.report["after"]["calibration_error"],
                "auc": calibration.report["auc"],
                "created_at": calibration.created_at,
                "rule": calibration.rule,
            }
            for calibration in calibrations
        ],
        columns=("number", "active", "judge_model", "labels", "error_before", "error_after", "auc"),
        optional=("auc",),
    )


@service_command(app, "calibrate", example="tollkeeper policy calibrate 'No secrets' 2")
async def calibration_activate(
    services: "Services",
    policy: PolicyArgument,
    number: Annotated[
        int,
        typer.Argument(
            metavar="N", help="The number of the calibration; 0 means no calibration.", min=0
        ),
    ],
) -> Record:
    """Activate a stored calibration of a policy.

    `policy try --save` stores calibrations. From now on, the active calibration applies whenever the
    policy is checked."""
    stored_policy = await _find_policy(services, policy)
    changed = await services.calibrations.calibration_activate(
        stored_policy.organization_id, stored_policy.id, number or None
    )
    active = changed.calibration
    return Record(
        {"policy_id": stored_policy.id, "calibration": None if active is None else active.number}
    )


async def _find_policy(services: "Services", policy: str) -> Policy:
    policy_id = await services.names.policy_named(policy)
    organization_id = await services.policies.policy_organization(policy_id)
    return await services.policies.policy_show(organization_id, policy_id)


def _record(services: "Services", policy: Policy) -> Record:
    return Record(_view(services, policy))


def _view(services: "Services", policy: Policy) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(policy_view(policy, services.default_threshold))
    return shown
