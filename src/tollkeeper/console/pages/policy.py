"""One policy: its life with the differences between versions, its verdicts over time, and what
another threshold would have matched."""

import difflib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import Change, Refused, answer_form, done, make_change
from tollkeeper.console.charts import counted_days, threshold_chart
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form
from tollkeeper.console.policy_form import description_of, name_of, rule_of
from tollkeeper.console.rendering import day, render
from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.domain.policy import Policy, PolicyVersion, Rule
from tollkeeper.domain.reports import DAY_S
from tollkeeper.services.policies.statistics import PolicyReport
from tollkeeper.services.use_cases import Services

_DAYS = {"7": "7 days", "30": "30 days", "90": "90 days"}
_BINS = 20
_BASIS_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a difference: added, removed or kept."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class VersionStep:
    """A version, and how it differs from the one before it."""

    version: PolicyVersion
    difference: tuple[Line, ...]


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    policy = await _policy(request)
    identity = policy.organization_id
    days = request.query_params.get("days", "30")
    if days not in _DAYS:
        raise InvalidRequest(f"A report covers {', '.join(_DAYS)} days.", param="days")
    report = await services.policy_statistics.policy_report(identity, policy.id, days=int(days))
    rule = policy.draft if policy.published is None else policy.published.rule
    threshold = rule.match_threshold_basis_points or services.default_threshold
    versions = await services.policies.policy_versions(identity, policy.id)
    projects = await services.projects.project_list(identity)
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
        pending=_pending(policy, services.default_threshold),
        report=report,
        asked=sum(one.asked for one in report.by_day),
        matched=sum(one.matched for one in report.by_day),
        unanswered=sum(one.unanswered for one in report.by_day),
        days=days,
        all_days=_DAYS,
        day_chart=_day_chart(report),
        threshold=threshold,
        threshold_chart=threshold_chart(
            [(one.probability_basis_points, one.asked) for one in report.by_probability], threshold
        ),
        bins=_bins(report),
        would_match=sum(
            one.asked for one in report.by_probability if one.probability_basis_points >= threshold
        ),
        judged=sum(one.asked for one in report.by_probability),
        default_threshold=services.default_threshold,
    )


async def change(request: Request) -> Response:
    policy = await _policy(request)
    action = _ACTIONS.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    async def handle(form: Form) -> Response:
        notice = await action(request, console_of(request).services, policy, form)
        return done(f"/policies/{policy.id}", notice)

    return await answer_form(request, handle, on_refusal=lambda refused: show(request, refused))


async def _policy(request: Request) -> Policy:
    services, identity = console_of(request).services, request.path_params["policy"]
    organization = await services.policies.policy_organization(identity)
    return await services.policies.policy_show(organization, identity)


async def _edit(request: Request, services: Services, policy: Policy, form: Form) -> str:
    name, description, rule = name_of(form), description_of(form), rule_of(form)
    revision = form.required_integer("revision")
    changes = {field: getattr(rule, field) for field in rule.__slots__}
    await make_change(
        request,
        Change("policy_edit", policy.id),
        lambda: services.policies.policy_edit(
            policy.organization_id,
            policy.id,
            revision,
            name=name,
            description=description,
            changes=changes,
        ),
    )
    return "policy-edited"


async def _set_threshold(request: Request, services: Services, policy: Policy, form: Form) -> str:
    """Takes the threshold that was dragged into the draft."""
    threshold = form.required_integer("threshold")
    if not 1 <= threshold < _BASIS_POINTS:
        raise InvalidRequest("A threshold is 1 to 9999 basis points.", param="threshold")
    revision = form.required_integer("revision")
    await make_change(
        request,
        Change("policy_edit", policy.id),
        lambda: services.policies.policy_edit(
            policy.organization_id,
            policy.id,
            revision,
            name=None,
            description=None,
            changes={"match_threshold_basis_points": threshold},
        ),
    )
    return "policy-edited"


async def _publish(request: Request, services: Services, policy: Policy, form: Form) -> str:
    await _move(request, policy, form, "policy_publish", services.policies.policy_publish)
    return "policy-published"


async def _pause(request: Request, services: Services, policy: Policy, form: Form) -> str:
    await _move(request, policy, form, "policy_pause", services.policies.policy_pause)
    return "policy-paused"


async def _resume(request: Request, services: Services, policy: Policy, form: Form) -> str:
    await _move(request, policy, form, "policy_resume", services.policies.policy_resume)
    return "policy-resumed"


async def _move(
    request: Request,
    policy: Policy,
    form: Form,
    operation: str,
    use_case: Callable[[OrganizationId, str, int], Awaitable[Policy]],
) -> None:
    """Makes a change that needs nothing but the revision that the operator has seen."""
    revision = form.required_integer("revision")
    await make_change(
        request,
        Change(operation, policy.id),
        lambda: use_case(policy.organization_id, policy.id, revision),
    )


_ACTIONS = {
    "edit": _edit,
    "set-threshold": _set_threshold,
    "publish": _publish,
    "pause": _pause,
    "resume": _resume,
}


def _steps(versions: list[PolicyVersion], default_threshold: int) -> list[VersionStep]:
    """The newest first; each is compared with the one that was in force before it."""
    rules = [*(version.rule for version in versions), None]
    return [
        VersionStep(
            version,
            tuple(_difference(before, version.rule, default_threshold)),
        )
        for version, before in zip(versions, rules[1:], strict=True)
    ]


def _pending(policy: Policy, default_threshold: int) -> tuple[Line, ...]:
    """What publishing the draft would change."""
    if not policy.has_unpublished_changes:
        return ()
    before = None if policy.published is None else policy.published.rule
    return tuple(_difference(before, policy.draft, default_threshold))


def _difference(before: Rule | None, after: Rule, default_threshold: int) -> Iterator[Line]:
    old = [] if before is None else _lines(before, default_threshold)
    for line in difflib.ndiff(old, _lines(after, default_threshold)):
        kind = {"+": "added", "-": "removed", " ": "kept"}.get(line[0])
        if kind is not None:
            yield Line(kind, line[2:])


def _lines(rule: Rule, default_threshold: int) -> list[str]:
    threshold = rule.match_threshold_basis_points
    return [
        *rule.rule.splitlines(),
        f"direction: {rule.direction}",
        f"mode: {rule.mode}",
        f"scope: {rule.scope}",
        *(f"project: {project}" for project in rule.project_ids),
        f"threshold: {threshold}"
        if threshold is not None
        else f"threshold: the default ({default_threshold})",
    ]


def _day_chart(report: PolicyReport) -> dict[str, object]:
    return counted_days(
        [day(one.day * DAY_S) for one in report.by_day],
        {
            "asked": [one.asked for one in report.by_day],
            "matched": [one.matched for one in report.by_day],
        },
    )


def _bins(report: PolicyReport) -> list[tuple[int, int]]:
    """The histogram as a table: the lowest probability of each bin, and how often it was found."""
    width = _BASIS_POINTS // _BINS
    counts = [0] * _BINS
    for one in report.by_probability:
        counts[min(one.probability_basis_points // width, _BINS - 1)] += one.asked
    return [(number * width, count) for number, count in enumerate(counts)]
