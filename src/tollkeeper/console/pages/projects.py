"""Shows projects with their caps, limits, keys and policies. Creates, changes and archives
projects."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import OWNER_OWN, WORK, Question
from tollkeeper.actions.caps import CAP_CLEAR, CAP_SET
from tollkeeper.actions.own_services import AnyServices
from tollkeeper.console.changes import FormAction, OwnFormAction, act, answer_form, done, form_of
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import console_of, services_of
from tollkeeper.console.forms import Form, Refused, model_list, organization_id, project_id
from tollkeeper.console.pages.costs import month_spend
from tollkeeper.console.pages.organizations import cap_period
from tollkeeper.console.rendering import render
from tollkeeper.core.access import ProjectId
from tollkeeper.core.allowed_models import unmatched
from tollkeeper.core.reports import CostDimension
from tollkeeper.money.caps.rule import CapPeriod, CapUse
from tollkeeper.money.credit.service import LimitChange
from tollkeeper.tenants.organization import Project


async def show_all(request: Request, refused: Refused | None = None) -> Response:
    services = services_of(request)
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
        spend={}
        if chosen.organization is None
        else await month_spend(services, chosen.organization.id, CostDimension.PROJECT_ID),
    )


async def create(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = console_of(request).services
        organization = organization_id(form.text("organization"))
        created = await services.projects.project_create(organization, form.text("name"))
        return done(request, f"/projects/{created.id}", "The project was created.")

    return await answer_form(request, handle, show_all)


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = services_of(request)
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
        limits=await services.accounts.limit_show(project.id),
        keys=await services.project_keys.project_key_list(project.id),
        policies=await services.policies.effective_policy_list(organization.id, project.id),
        periods=[period.value for period in CapPeriod],
        unmatched=unmatched(
            project.models, [model.id for model in services.catalog.catalog.models]
        ),
    )


async def change(request: Request) -> Response:
    services = services_of(request)
    project = await services.projects.project_show(project_id(request.path_params["project"]))
    return await act(request, ACTIONS, project, f"/projects/{project.id}", show)


def _limit(form: Form, name: str) -> LimitChange:
    """Reads a limit. An empty field means the default in the settings."""
    limit = form.integer(name, optional=True)
    return "default" if limit is None else limit


async def _ask_about_archive(_: AnyServices, project: Project, __: Form) -> Question:
    return Question(
        f"Archive {project.name}?",
        "Its keys admit no new calls. Costs and activity stay readable. This cannot be undone.",
        "Archive project",
    )


ACTIONS: dict[str, FormAction[Project]] = {
    "archive": OwnFormAction(
        OWNER_OWN,
        "The project is archived: its keys admit no new calls.",
        lambda services, project, _: services.projects.project_archive(
            project.organization_id, project.id
        ),
        _ask_about_archive,
    ),
    "rename": FormAction(
        WORK,
        "The name is changed.",
        lambda services, project, form: services.projects.project_rename(
            project.id, form.text("name")
        ),
    ),
    "set-cap": form_of(
        CAP_SET,
        lambda project, form: CAP_SET(
            project.organization_id, form.picousd("amount"), cap_period(form), project.id
        ),
    ),
    "clear-cap": form_of(
        CAP_CLEAR,
        lambda project, form: CAP_CLEAR(project.organization_id, cap_period(form), project.id),
    ),
    "allow-models": FormAction(
        WORK,
        "The list of models is set.",
        lambda services, project, form: services.projects.project_allow_models(
            project.id, model_list(form, services.catalog.catalog.models)
        ),
    ),
    "set-limits": FormAction(
        WORK,
        "The limits are set.",
        lambda services, project, form: services.accounts.limit_set(
            project.id, _limit(form, "requests_per_minute"), _limit(form, "concurrency")
        ),
    ),
}
