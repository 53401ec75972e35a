"""Organizations: credit, caps with their fill, checks; create and grant."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import Change, Refused, answer_form, done, make_change
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, organization_id
from tollkeeper.console.rendering import render
from tollkeeper.domain.access import ADMIN_PERMISSIONS, KeyId, OrganizationId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.services.use_cases import Services

_KEYS_NAMED_MAX = 500


async def show_all(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    found = await services.organizations.organization_list()
    return render(
        request,
        "organizations.html",
        nav="organizations",
        title="Organizations",
        refused=refused,
        organizations=found,
        balances=await services.ledger_overview.credit_list(),
    )


async def create(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services, name = console_of(request).services, form.text("name")
        made = await make_change(
            request,
            Change("organization_create", name),
            lambda: services.organizations.organization_create(name),
        )
        return done(f"/organizations/{made.id}", "organization-created")

    return await answer_form(request, handle, on_refusal=lambda refused: show_all(request, refused))


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    identity = organization_id(request.path_params["organization"])
    organization = await services.organizations.organization_show(identity)
    projects = await services.projects.project_list(identity)
    return render(
        request,
        "organization.html",
        nav="organizations",
        title=organization.name,
        refused=refused,
        organization=organization,
        balance=await services.billing.credit_show(identity),
        caps=await services.caps.cap_show(identity),
        key_names=await _key_names(services, identity),
        overage=await services.billing.overage_show(identity),
        projects=projects,
        project_names={project.id: project.name for project in projects},
        periods=[period.value for period in CapPeriod],
        admin_keys=await services.admin_keys.admin_key_list(identity, after=None, limit=100),
        admin_permissions=sorted(ADMIN_PERMISSIONS),
        known_checks=sorted(
            {check for model in services.catalog.catalog.models for check in model.required_checks}
            - set(organization.checks)
        ),
    )


async def change(request: Request) -> Response:
    identity = organization_id(request.path_params["organization"])
    action = _ACTIONS.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    async def handle(form: Form) -> Response:
        services = console_of(request).services
        notice = await action(request, services, identity, form)
        return done(f"/organizations/{identity}", notice)

    return await answer_form(request, handle, on_refusal=lambda refused: show(request, refused))


async def _grant_credit(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    amount, note = form.picousd("amount"), form.text("note", default="")
    await make_change(
        request,
        Change("credit_grant", str(identity)),
        lambda: services.billing.credit_grant(identity, amount, note),
    )
    return "credit-granted"


async def _set_cap(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    amount, period = form.picousd("amount"), cap_period(form)
    await make_change(
        request,
        Change("cap_set", str(identity)),
        lambda: services.caps.cap_set(identity, amount, period),
    )
    return "cap-set"


async def _clear_cap(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    period = cap_period(form)
    await make_change(
        request,
        Change("cap_clear", str(identity)),
        lambda: services.caps.cap_clear(identity, period=period),
    )
    return "cap-cleared"


async def _set_overage(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    """An empty field means the bound of the settings."""
    bound = form.picousd("bound") if form.text("bound", default="") else None
    await make_change(
        request,
        Change("overage_set", str(identity)),
        lambda: services.billing.overage_set(identity, bound),
    )
    return "overage-set"


async def _clear_overage(
    request: Request, services: Services, identity: OrganizationId, _form: Form
) -> str:
    await make_change(
        request,
        Change("overage_clear", str(identity)),
        lambda: services.billing.overage_clear(identity),
    )
    return "overage-cleared"


async def _grant_check(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    check = form.text("check")
    await make_change(
        request,
        Change("organization_grant_check", str(identity)),
        lambda: services.organizations.organization_grant_check(identity, check),
    )
    return "check-granted"


async def _revoke_check(
    request: Request, services: Services, identity: OrganizationId, form: Form
) -> str:
    check = form.text("check")
    await make_change(
        request,
        Change("organization_revoke_check", str(identity)),
        lambda: services.organizations.organization_revoke_check(identity, check),
    )
    return "check-revoked"


_ACTIONS = {
    "grant-credit": _grant_credit,
    "set-cap": _set_cap,
    "clear-cap": _clear_cap,
    "set-overage": _set_overage,
    "clear-overage": _clear_overage,
    "grant-check": _grant_check,
    "revoke-check": _revoke_check,
}


async def _key_names(services: Services, identity: OrganizationId) -> dict[KeyId, str]:
    """The names of the newest keys, for those of them that have caps."""
    keys = await services.project_keys.project_key_list_of_organization(
        identity, limit=_KEYS_NAMED_MAX
    )
    return {key.id: key.name for key in keys}


def cap_period(form: Form) -> CapPeriod:
    try:
        return CapPeriod(form.text("period"))
    except ValueError:
        allowed = ", ".join(CapPeriod)
        raise InvalidRequest(f"A period is one of {allowed}.", param="period") from None
