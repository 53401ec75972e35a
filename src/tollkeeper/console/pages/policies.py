"""Lists an organization's policies with their states and numbers of matches, and creates policies
as drafts."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import services_of, whole_console
from tollkeeper.console.forms import Form, Refused, organization_id
from tollkeeper.console.policy_form import description_of, name_of, rule_of
from tollkeeper.console.rendering import render
from tollkeeper.policies.policies import OPERATION_CREATE
from tollkeeper.policies.policy import Policy
from tollkeeper.tenants.idempotency import IdempotentRequest
from tollkeeper.tenants.organization import Project

_DAYS = 7


async def show_all(request: Request, refused: Refused | None = None) -> Response:
    services = services_of(request)
    chosen = await chosen_organization(request)
    policies: list[Policy] = []
    projects: list[Project] = []
    counts: dict[str, tuple[int, int]] = {}
    if chosen.organization is not None:
        identity = chosen.organization.id
        policies = await services.policies.policy_list(identity)
        projects = await services.projects.project_list(identity)
        counts = await services.policy_statistics.policy_counts(identity, days=_DAYS)
    return render(
        request,
        "policies.html",
        nav="policies",
        title="Policies",
        refused=refused,
        chosen=chosen,
        policies=policies,
        projects=projects,
        counts=counts,
        days=_DAYS,
        judge=whole_console(request).settings.judge,
        default_threshold=services.default_threshold,
    )


async def create(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = services_of(request)
        organization = organization_id(form.text("organization"))
        name, description, rule = name_of(form), description_of(form), rule_of(form)
        meaning = msgspec.json.encode([name, description, rule])
        asked = IdempotentRequest(
            organization, OPERATION_CREATE, f"console-{form.text('once')}", meaning
        )
        created = await services.policies.policy_create(name, description, rule, asked)
        return done(
            *(request, f"/policies/{created.id}"),
            "The policy was created as a draft. Nothing is judged before it is published.",
        )

    return await answer_form(request, handle, show_all)
