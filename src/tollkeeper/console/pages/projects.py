"""Projects: their caps, limits, keys and policies; create and archive."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import Change, Refused, answer_form, done, make_change
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, organization_id, project_id
from tollkeeper.console.pages.organizations import cap_period
from tollkeeper.console.rendering import render
from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.errors import NotFound
from tollkeeper.domain.organization import Project
from tollkeeper.services.ledger.billing import LimitChange
from tollkeeper.services.use_cases import Services
from tollkeeper.storage.accounts import CapUse


async def show_all(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    chosen = await chosen_organization(request)
    caps: dict[ProjectId, list[CapUse]] = {}
    projects: list[Project] = []
    if chosen.organization is not None:
        projects = await services.projects.project_list(chosen.organization.id)
        for use in await services.caps.cap_show(chosen.organization.id):
            if use.project_id is not None and use.key_id is None:
                caps.setdefault(use.project_id, []).append(use)
    return render(
        request,
        "projects.html",
        nav="projects",
        title="Projects",
        refused=refused,
        chosen=chosen,
        projects=projects,
        caps=caps,
    )


async def create(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = console_of(request).services
        organization, name = organization_id(form.text("organization")), form.text("name")
        made = await make_change(
            request,
            Change("project_create", str(organization)),
            lambda: services.projects.project_create(organization, name),
        )
        return done(f"/projects/{made.id}", "project-created")

    return await answer_form(request, handle, on_refusal=lambda refused: show_all(request, refused))


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    project = await services.projects.project_show(project_id(request.path_params["project"]))
    organization = await services.organizations.organization_show(project.organization_id)
    caps = await services.caps.cap_show(project.organization_id)
    return render(
        request,
        "project.html",
        nav="projects",
        title=project.name,
        refused=refused,
        project=project,
        organization=organization,
        caps=[use for use in caps if use.project_id == project.id and use.key_id is None],
        limits=await services.billing.limit_show(project.id),
        keys=await services.project_keys.project_key_list(project.id),
        policies=await services.policies.effective_policy_list(organization.id, project.id),
        periods=[period.value for period in CapPeriod],
    )


async def change(request: Request) -> Response:
    services = console_of(request).services
    project = await services.projects.project_show(project_id(request.path_params["project"]))
    action = _ACTIONS.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    async def handle(form: Form) -> Response:
        notice = await action(request, services, project, form)
        return done(f"/projects/{project.id}", notice)

    return await answer_form(request, handle, on_refusal=lambda refused: show(request, refused))


async def _archive(request: Request, services: Services, project: Project, _form: Form) -> str:
    await make_change(
        request,
        Change("project_archive", str(project.id)),
        lambda: services.projects.project_archive(project.organization_id, project.id),
    )
    return "project-archived"


async def _set_cap(request: Request, services: Services, project: Project, form: Form) -> str:
    amount, period = form.picousd("amount"), cap_period(form)
    await make_change(
        request,
        Change("cap_set", str(project.id)),
        lambda: services.caps.cap_set(project.organization_id, amount, period, project.id),
    )
    return "cap-set"


async def _clear_cap(request: Request, services: Services, project: Project, form: Form) -> str:
    period = cap_period(form)
    await make_change(
        request,
        Change("cap_clear", str(project.id)),
        lambda: services.caps.cap_clear(project.organization_id, project.id, period=period),
    )
    return "cap-cleared"


async def _set_limits(request: Request, services: Services, project: Project, form: Form) -> str:
    rate, concurrency = _limit(form, "requests_per_minute"), _limit(form, "concurrency")
    await make_change(
        request,
        Change("limit_set", str(project.id)),
        lambda: services.billing.limit_set(project.id, rate, concurrency),
    )
    return "limits-set"


def _limit(form: Form, name: str) -> LimitChange:
    """An empty field means the default of the settings."""
    return form.integer(name, optional=True) or "default"


_ACTIONS = {
    "archive": _archive,
    "set-cap": _set_cap,
    "clear-cap": _clear_cap,
    "set-limits": _set_limits,
}
