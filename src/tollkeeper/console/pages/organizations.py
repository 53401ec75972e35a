"""Shows organizations with their credit, caps and checks, creates organizations, and changes
them."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import OWNER, WORK, Question
from tollkeeper.actions.caps import CAP_CLEAR, CAP_SET
from tollkeeper.actions.credit import CREDIT_GRANT
from tollkeeper.actions.own_services import AnyServices
from tollkeeper.console.amounts import exact_usd
from tollkeeper.console.changes import FormAction, act, answer_form, done, form_of
from tollkeeper.console.context import console_of, services_of
from tollkeeper.console.forms import Form, Refused, organization_id, storable
from tollkeeper.console.rendering import render
from tollkeeper.core.access import ADMIN_PERMISSIONS, KeyId, OrganizationId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.payments.rule import ADDING_KINDS, WITHDRAWING_KINDS, GrantKind
from tollkeeper.setup.services import Services

_KEYS_NAMED_MAX = 500
_GRANTS_SHOWN = 10


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
        services = console_of(request).services
        created = await services.organizations.organization_create(form.text("name"))
        return done(request, f"/organizations/{created.id}", "The organization was created.")

    return await answer_form(request, handle, show_all)


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = services_of(request)
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
        balance=await services.accounts.credit_show(identity),
        grants=await services.accounts.credit_list(identity, limit=_GRANTS_SHOWN),
        grant_kinds=[kind.value for kind in (*ADDING_KINDS, *WITHDRAWING_KINDS)],
        caps=await services.caps.cap_show(identity),
        key_names=await _key_names(services, identity),
        overage=await services.accounts.overage_show(identity),
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
    return await act(request, ACTIONS, identity, f"/organizations/{identity}", show)


async def _ask_about_archive(services: Services, identity: OrganizationId, _: Form) -> Question:
    organization = await services.organizations.organization_show(identity)
    balance = await services.accounts.credit_show(identity)
    return Question(
        f"Archive {organization.name}?",
        "Its projects are archived and its keys admit no calls. This cannot be undone.",
        "Archive organization",
        facts={"Available": exact_usd(balance.available_picousd)},
    )


ACTIONS: dict[str, FormAction[OrganizationId]] = {
    "grant-credit": form_of(
        CREDIT_GRANT,
        lambda identity, form: CREDIT_GRANT(
            *(identity, form.picousd("amount"), form.text("note", default="")),
            *(_grant_kind(form), form.id),
        ),
    ),
    "rename": FormAction(
        WORK,
        "The name is changed.",
        lambda services, identity, form: services.organizations.organization_rename(
            identity, form.text("name")
        ),
    ),
    "archive": FormAction(
        OWNER,
        "The organization is archived: its keys admit no calls.",
        lambda services, identity, _: services.organizations.organization_archive(identity),
        _ask_about_archive,
    ),
    "set-cap": form_of(
        CAP_SET,
        lambda identity, form: CAP_SET(identity, form.picousd("amount"), cap_period(form)),
    ),
    "clear-cap": form_of(CAP_CLEAR, lambda identity, form: CAP_CLEAR(identity, cap_period(form))),
    "set-overage": FormAction(
        WORK,
        "The overage bound is set.",
        # An empty field means the default bound in the settings.
        lambda services, identity, form: services.accounts.overage_set(
            identity, form.picousd("bound") if form.text("bound", default="") else None
        ),
    ),
    "clear-overage": FormAction(
        WORK,
        "Calls of the organization are admitted again.",
        lambda services, identity, _: services.accounts.overage_clear(identity),
    ),
    "grant-check": FormAction(
        WORK,
        "The organization has the check now.",
        lambda services, identity, form: services.organizations.organization_grant_check(
            identity, storable(form.text("check"), "check")
        ),
    ),
    "revoke-check": FormAction(
        WORK,
        "The organization no longer has the check.",
        lambda services, identity, form: services.organizations.organization_revoke_check(
            identity, storable(form.text("check"), "check")
        ),
    ),
}


async def _key_names(services: AnyServices, identity: OrganizationId) -> dict[KeyId, str]:
    """Returns the names of the newest keys by id. The page shows the names of keys with caps."""
    keys = await services.project_keys.project_key_list_of_organization(
        identity, limit=_KEYS_NAMED_MAX
    )
    return {key.id: key.name for key in keys}


def _grant_kind(form: Form) -> GrantKind | None:
    text = form.text("kind", default="")
    if text not in ("", *GrantKind):
        raise InvalidRequest(f"A kind is one of {', '.join(GrantKind)}.", param="kind")
    return GrantKind(text) if text else None


def cap_period(form: Form) -> CapPeriod:
    try:
        return CapPeriod(form.text("period"))
    except ValueError:
        allowed = ", ".join(CapPeriod)
        raise InvalidRequest(f"A period is one of {allowed}.", param="period") from None
