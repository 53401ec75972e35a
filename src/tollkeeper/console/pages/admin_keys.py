"""Creates, renames and revokes admin keys. The forms are on the organization's page."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.context import console_of, services_of
from tollkeeper.console.forms import Form, key_id, organization_id
from tollkeeper.console.pages import organizations
from tollkeeper.console.pages.keys import revoke_question
from tollkeeper.console.rendering import render
from tollkeeper.core.errors import InvalidRequest, NotFound

_DAY_S = 86_400


async def create(request: Request) -> Response:
    """Creates a key. The response page shows the key's value; no other page can show it."""
    identity = organization_id(request.path_params["organization"])

    async def handle(form: Form) -> Response:
        services = console_of(request).services
        name, permissions = form.text("name"), form.texts("permission")
        if not permissions:
            raise InvalidRequest("Choose at least one permission.", param="permission")
        days = form.integer("expires_in_days", optional=True)
        expires_in_s = None if days is None else days * _DAY_S
        key, value = await services.admin_keys.admin_key_create(
            identity, name, permissions, expires_in_s
        )
        return render(
            request,
            "admin_key_created.html",
            nav="organizations",
            title="Admin API key created",
            key=key,
            value=value,
        )

    return await answer_form(request, handle, organizations.show)


async def revoke(request: Request) -> Response:
    identity = organization_id(request.path_params["organization"])
    key = key_id(request.path_params["key"])

    services, address = services_of(request), f"/organizations/{identity}"

    async def ask(_form: Form) -> Question | None:
        page = await services.admin_keys.admin_key_list(identity, after=None, limit=100)
        return next((revoke_question(one.name) for one in page.keys if one.id == key), None)

    async def handle(_form: Form) -> Response:
        await services.admin_keys.admin_key_revoke(identity, key)
        return done(request, address, "The key is revoked.")

    return await answer_form(request, handle, organizations.show, ask=ask, back=address)


async def rename(request: Request) -> Response:
    identity = organization_id(request.path_params["organization"])
    key = key_id(request.path_params["key"])

    async def handle(form: Form) -> Response:
        services = console_of(request).services
        if (await services.admin_keys.admin_key_show(key)).organization_id != identity:
            raise NotFound("There is no such Admin API key.", param="key")
        await services.admin_keys.admin_key_rename(key, form.text("name"))
        return done(request, f"/organizations/{identity}", "The name is changed.")

    return await answer_form(request, handle, organizations.show)
