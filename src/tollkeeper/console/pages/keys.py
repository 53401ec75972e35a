"""Shows project keys with their last use, expiry and permissions. Creates, rotates, suspends and
revokes keys."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import OWNER, WORK, Question
from tollkeeper.actions.caps import CAP_CLEAR, CAP_SET
from tollkeeper.actions.project_keys import PROJECT_KEY_CREATE
from tollkeeper.console.changes import FormAction, act, answer_form, form_of
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import console_of, services_of, whole_console
from tollkeeper.console.forms import Form, Refused, key_id, model_list, optional, project_id
from tollkeeper.console.gateway_call import gateway_url
from tollkeeper.console.pages.costs import month_spend
from tollkeeper.console.pages.organizations import cap_period
from tollkeeper.console.rendering import render
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS, KeyId, OrganizationId
from tollkeeper.core.reports import CostDimension
from tollkeeper.money.caps.rule import CapPeriod, CapUse
from tollkeeper.setup.services import Services
from tollkeeper.tenants.organization import Project, ProjectKey

_SHOWN_MAX = 500
_HOUR_S = 3600
_DAY_S = 86_400


async def show_all(
    request: Request, refused: Refused | None = None, of: OrganizationId | None = None
) -> Response:
    services = services_of(request)
    chosen = await chosen_organization(request, of)
    project_text = optional(request.query_params, "project")
    keys: list[ProjectKey] = []
    projects: list[Project] = []
    caps: dict[KeyId, list[CapUse]] = {}
    if chosen.organization is not None:
        projects = await services.projects.project_list(chosen.organization.id)
        if project_text is None:
            keys = await services.project_keys.project_key_list_of_organization(
                chosen.organization.id, limit=_SHOWN_MAX
            )
        else:
            keys = await services.project_keys.project_key_list(project_id(project_text))
        for use in await services.caps.cap_show(chosen.organization.id):
            if use.key_id is not None:
                caps.setdefault(use.key_id, []).append(use)
    return render(
        request,
        "keys.html",
        nav="keys",
        title="Keys",
        refused=refused,
        chosen=chosen,
        projects=projects,
        keys=keys,
        caps=caps,
        spend={}
        if chosen.organization is None
        else await month_spend(services, chosen.organization.id, CostDimension.API_KEY_ID),
        periods=[period.value for period in CapPeriod],
        shown_max=_SHOWN_MAX,
        permissions=sorted(PROJECT_KEY_PERMISSIONS),
        defaults=whole_console(request).settings.auth.project_key_default_permissions,
    )


async def create(request: Request) -> Response:
    """Creates a key. The response page shows the key's value; no other page can show it."""

    async def handle(form: Form) -> Response:
        days = form.integer("expires_in_days", optional=True)
        # Users with the role `organization` do not see the last two fields, so the keys that they
        # create have the defaults, like keys that are created with an admin key.
        key, value = await PROJECT_KEY_CREATE.run(
            *(services_of(request), project_id(form.text("project")), form.text("name")),
            *(form.texts("permission"), None if days is None else days * _DAY_S),
        )
        return created(request, key, value)

    return await answer_form(request, handle, show_all)


def created(
    request: Request,
    key: ProjectKey,
    value: str,
    replaced: ProjectKey | None = None,
    granted_picousd: int | None = None,
) -> Response:
    """Shows the value of a new key. `granted_picousd` is the credit that was granted together with
    the key."""
    settings = whole_console(request).settings
    return render(
        request,
        "key_created.html",
        nav="keys",
        title="Key created",
        key=key,
        value=value,
        replaced=replaced,
        granted_picousd=granted_picousd,
        base_url=f"{gateway_url(settings)}/v1",
        model=settings.models[0].id if settings.models else "MODEL",
    )


async def rotate(request: Request) -> Response:
    """Creates a replacement for a key. The old key remains valid for the grace period."""

    async def handle(form: Form) -> Response:
        services, chosen_id = console_of(request).services, key_id(request.path_params["key"])
        grace_s = form.required_integer("grace_hours") * _HOUR_S
        rotation = await services.project_keys.project_key_rotate(chosen_id, grace_s)
        return created(request, rotation.new, rotation.value, replaced=rotation.old)

    page = partial(show_all, of=(await _key(request)).organization_id)
    return await answer_form(request, handle, page)


async def change(request: Request) -> Response:
    key = await _key(request)
    address = f"/keys?organization={key.organization_id}&project={key.project_id}"
    page = partial(show_all, of=key.organization_id)
    return await act(request, ACTIONS, key, address, page)


async def _key(request: Request) -> ProjectKey:
    services, chosen_id = console_of(request).services, key_id(request.path_params["key"])
    return await services.project_keys.project_key_show(chosen_id)


def revoke_question(name: str) -> Question:
    return Question(
        f"Revoke {name}?",
        "Programs that use the key are refused from now on. This cannot be undone.",
        "Revoke key",
    )


async def _ask_about_revoke(_: Services, key: ProjectKey, __: Form) -> Question:
    return revoke_question(key.name)


ACTIONS: dict[str, FormAction[ProjectKey]] = {
    "suspend": FormAction(
        WORK,
        "The key is suspended.",
        lambda services, key, _: services.project_keys.project_key_suspend(key.id),
    ),
    "unsuspend": FormAction(
        WORK,
        "The key is active again.",
        lambda services, key, _: services.project_keys.project_key_unsuspend(key.id),
    ),
    "revoke": FormAction(
        OWNER,
        "The key is revoked.",
        lambda services, key, _: services.project_keys.project_key_revoke(key.id),
        _ask_about_revoke,
    ),
    "allow-models": FormAction(
        WORK,
        "The list of models is set.",
        lambda services, key, form: services.project_keys.project_key_allow_models(
            key.id, model_list(form, services.catalog.catalog.models)
        ),
    ),
    "rename": FormAction(
        WORK,
        "The name is changed.",
        lambda services, key, form: services.project_keys.project_key_rename(
            key.id, form.text("name")
        ),
    ),
    "set-cap": form_of(
        CAP_SET,
        lambda key, form: CAP_SET(
            key.organization_id, form.picousd("amount"), cap_period(form), key_id=key.id
        ),
    ),
    "clear-cap": form_of(
        CAP_CLEAR, lambda key, form: CAP_CLEAR(key.organization_id, cap_period(form), key_id=key.id)
    ),
}
