"""Shows one policy: its versions and their differences, its verdicts (results for calls) by day,
and the number of matches at other thresholds. Changes the policy."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import WORK, WORK_OWN, Question
from tollkeeper.actions.own_services import AnyServices
from tollkeeper.console.amounts import number
from tollkeeper.console.changes import FormAction, OwnFormAction, act
from tollkeeper.console.charts import counted_days, threshold_chart
from tollkeeper.console.context import services_of, whole_console
from tollkeeper.console.forms import Form, Refused, storable
from tollkeeper.console.policy_form import description_of, name_of, rule_of
from tollkeeper.console.rendering import day, render
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.percent import percent_of
from tollkeeper.core.reports import DAY_S
from tollkeeper.policies.policy import Mode, Policy, PolicyVersion, Rule
from tollkeeper.reports.policy_statistics import PolicyReport
from tollkeeper.setup.services import Services, judge_format

_DAYS = {"7": "7 days", "30": "30 days", "90": "90 days"}
_BINS = 20
# 100 % in basis points.
_BASIS_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """Represents an added, removed or unchanged line in the comparison of two rules."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class VersionStep:
    """Contains a version and its differences from the previous version."""

    version: PolicyVersion
    difference: tuple[Line, ...]


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = services_of(request)
    policy = await _policy(request)
    identity = policy.organization_id
    days = request.query_params.get("days", "30")
    if days not in _DAYS:
        raise InvalidRequest(f"A report covers {', '.join(_DAYS)} days.", param="days")
    report = await services.policy_statistics.policy_report(identity, policy.id, days=int(days))
    rule = policy.current_rule
    threshold = rule.match_threshold_basis_points or services.default_threshold
    versions = await services.policies.policy_versions(identity, policy.id)
    projects = await services.projects.project_list(identity)
    calibration = policy.calibration
    if calibration is not None and not calibration.applies_to(
        rule.rule, judge_format(whole_console(request).settings)
    ):
        calibration = None
    return render(
        request,
        "policy.html",
        nav="policies",
        title=policy.name,
        refused=refused,
        policy=policy,
        organization=await services.organizations.organization_show(identity),
        projects=projects,
        project_names={project.id: project.name for project in projects},
        steps=_steps(versions, services.default_threshold),
        draft_difference=_draft_difference(policy, services.default_threshold),
        report=report,
        asked=sum(one.asked for one in report.by_day),
        matched=sum(one.matched for one in report.by_day),
        unanswered=sum(one.unanswered for one in report.by_day),
        days=days,
        all_days=_DAYS,
        day_chart=_day_chart(report),
        threshold=threshold,
        threshold_chart=threshold_chart(
            [(one.probability_basis_points, one.asked) for one in report.by_probability],
            threshold,
            value="score" if calibration is None else "probability",
            guarantees=None if calibration is None else calibration.report.get("guarantees"),
        ),
        calibration=calibration,
        calibrations=await services.calibrations.calibration_list(identity, policy.id),
        drift=await services.policy_statistics.policy_drift(identity, policy.id),
        bins=_bins(report),
        would_match=sum(
            one.asked for one in report.by_probability if one.probability_basis_points >= threshold
        ),
        judged=sum(one.asked for one in report.by_probability),
        default_threshold=services.default_threshold,
    )


async def change(request: Request) -> Response:
    policy = await _policy(request)
    return await act(request, ACTIONS, policy, f"/policies/{policy.id}", show)


async def _policy(request: Request) -> Policy:
    services = services_of(request)
    identity = storable(request.path_params["policy"], "policy")
    organization = await services.policies.policy_organization(identity)
    return await services.policies.policy_show(organization, identity)


async def _edit(services: AnyServices, policy: Policy, form: Form) -> None:
    rule = rule_of(form)
    await services.policies.policy_edit(
        policy.organization_id,
        policy.id,
        form.required_integer("revision"),
        name=name_of(form),
        description=description_of(form),
        changes={field: getattr(rule, field) for field in rule.__slots__},
    )


async def _set_threshold(services: AnyServices, policy: Policy, form: Form) -> None:
    """Stores the selected threshold in the policy's draft."""
    threshold = form.required_integer("threshold")
    if not 1 <= threshold < _BASIS_POINTS:
        raise InvalidRequest("A threshold is 0.01 % to 99.99 %.", param="threshold")
    await services.policies.policy_edit(
        policy.organization_id,
        policy.id,
        form.required_integer("revision"),
        name=None,
        description=None,
        changes={"match_threshold_basis_points": threshold},
    )


async def _ask_about_publish(services: Services, policy: Policy, _: Form) -> Question | None:
    return await _ask_about_enforcing(services, policy, policy.draft, "Publish")


async def _ask_about_resume(services: Services, policy: Policy, _: Form) -> Question | None:
    return await _ask_about_enforcing(services, policy, policy.current_rule, "Resume")


async def _ask_about_enforcing(
    services: Services, policy: Policy, rule: Rule, verb: str
) -> Question | None:
    """Returns a question if the policy will be enforcing, and None if it will only monitor."""
    if rule.mode is not Mode.ENFORCING:
        return None
    counts = await services.policy_statistics.policy_counts(policy.organization_id, days=7)
    asked, matched = counts.get(policy.id, (0, 0))
    threshold = rule.match_threshold_basis_points or services.default_threshold
    return Question(
        f"{verb} {policy.name} as enforcing?",
        "Calls that match are denied from now on, and calls fail while the judge does not answer.",
        f"{verb} as enforcing",
        facts={
            "Question": rule.rule,
            "Judges": {"both": "requests and answers", "request": "requests"}.get(
                rule.direction, "answers"
            ),
            "Applies to": {"organization": "every project", "projects": "chosen projects"}.get(
                rule.scope, "requests that name it"
            ),
            "Threshold": percent_of(threshold),
            "Last 7 days": f"{number(matched)} of {number(asked)} verdicts matched",
        },
    )


ACTIONS: dict[str, FormAction[Policy]] = {
    "edit": OwnFormAction(
        WORK_OWN,
        "The draft was changed. The published version stays in force until you publish.",
        _edit,
    ),
    "set-threshold": OwnFormAction(
        WORK_OWN,
        "The draft was changed. The published version stays in force until you publish.",
        _set_threshold,
    ),
    "publish": FormAction(
        WORK,
        "The draft is published.",
        lambda services, policy, form: services.policies.policy_publish(
            policy.organization_id, policy.id, form.required_integer("revision")
        ),
        _ask_about_publish,
    ),
    "calibrate": FormAction(
        WORK,
        "The calibration in use is changed.",
        # The number 0 selects no calibration.
        lambda services, policy, form: services.calibrations.calibration_activate(
            policy.organization_id, policy.id, form.integer("number") or None
        ),
    ),
    "pause": OwnFormAction(
        WORK_OWN,
        "The policy is paused.",
        lambda services, policy, form: services.policies.policy_pause(
            policy.organization_id, policy.id, form.required_integer("revision")
        ),
    ),
    "resume": FormAction(
        WORK,
        "The policy is in force again.",
        lambda services, policy, form: services.policies.policy_resume(
            policy.organization_id, policy.id, form.required_integer("revision")
        ),
        _ask_about_resume,
    ),
}


def _steps(versions: list[PolicyVersion], default_threshold: int) -> list[VersionStep]:
    """Returns the versions, newest first, each with its differences from the version before."""
    return [
        VersionStep(
            version, tuple(_difference(before, version.name, version.rule, default_threshold))
        )
        for version, before in zip(versions, [*versions, None][1:], strict=True)
    ]


def _draft_difference(policy: Policy, default_threshold: int) -> tuple[Line, ...]:
    """Returns the differences between the published version and the draft; empty if the draft has
    no unpublished changes."""
    if not policy.has_unpublished_changes:
        return ()
    return tuple(_difference(policy.published, policy.name, policy.draft, default_threshold))


def _difference(
    before: PolicyVersion | None, name: str, rule: Rule, default_threshold: int
) -> Iterator[Line]:
    lines_before = [] if before is None else _lines(before.name, before.rule, default_threshold)
    for line in difflib.ndiff(lines_before, _lines(name, rule, default_threshold)):
        kind = {"+": "added", "-": "removed", " ": "kept"}.get(line[0])
        if kind is not None:
            yield Line(kind, line[2:])


def _lines(name: str, rule: Rule, default_threshold: int) -> list[str]:
    threshold = rule.match_threshold_basis_points
    return [
        f"name: {name}",
        *rule.rule.splitlines(),
        f"direction: {rule.direction}",
        f"mode: {rule.mode}",
        f"scope: {rule.scope}",
        *(f"project: {project}" for project in rule.project_ids),
        f"threshold: {percent_of(threshold)}"
        if threshold is not None
        else f"threshold: the default ({percent_of(default_threshold)})",
    ]


def _day_chart(report: PolicyReport) -> dict[str, object]:
    return counted_days(
        [day(counts.day * DAY_S) for counts in report.by_day],
        {
            "asked": [counts.asked for counts in report.by_day],
            "matched": [counts.matched for counts in report.by_day],
        },
    )


def _bins(report: PolicyReport) -> list[tuple[int, int]]:
    """Returns the histogram of the policy's values as a table: the lowest value and the count of
    each bin."""
    width = _BASIS_POINTS // _BINS
    counts = [0] * _BINS
    for one in report.by_probability:
        counts[min(one.probability_basis_points // width, _BINS - 1)] += one.asked
    return [(number * width, count) for number, count in enumerate(counts)]
