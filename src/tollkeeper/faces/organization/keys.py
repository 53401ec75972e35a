"""Project keys, Admin API keys and the archiving of projects."""

from msgspec import UNSET

from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.organization import ids
from tollkeeper.faces.organization.idempotency import idempotent_request
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import organization as wire
from tollkeeper.tenants.organization import AdminKey, ProjectKey
from tollkeeper.tenants.project_keys import OPERATION_CREATE


async def project_key_create(
    services: ApiServices, request: Request[wire.ProjectKeyCreate, None]
) -> wire.ProjectKey:
    key, value = await services.project_keys.project_key_create(
        ids.project_id(request.path["project_id"]),
        request.body.name,
        idempotent_request(request, OPERATION_CREATE, request.body),
    )
    return project_key_view(key, services.clock(), value)


async def project_archive(
    services: ApiServices, request: Request[None, None]
) -> wire.ProjectDeleted:
    project_id = await services.projects.project_archive(
        request.admin_caller.organization_id, ids.project_id(request.path["project_id"])
    )
    return wire.ProjectDeleted(object="organization.project.deleted", id=project_id, deleted=True)


async def admin_key_list(
    services: ApiServices, request: Request[None, wire.AdminKeyListQuery]
) -> wire.AdminKeyList:
    query = request.query
    page = await services.admin_keys.admin_key_list(
        request.admin_caller.organization_id,
        after=None if query.after is None else ids.key_id(query.after, param="after"),
        limit=query.limit,
        descending=query.order == "desc",
    )
    return wire.AdminKeyList(
        object="list",
        data=[admin_key_view(key) for key in page.keys],
        has_more=page.has_more,
        first_id=str(page.keys[0].id) if page.keys else None,
        last_id=str(page.keys[-1].id) if page.keys else None,
    )


async def admin_key_revoke(
    services: ApiServices, request: Request[None, None]
) -> wire.AdminKeyDeleted:
    key_id = await services.admin_keys.admin_key_revoke(
        request.admin_caller.organization_id, ids.key_id(request.path["api_key_id"])
    )
    return wire.AdminKeyDeleted(
        object="organization.admin_api_key.deleted", id=key_id, deleted=True
    )


def project_key_view(key: ProjectKey, now: int, value: str | None = None) -> wire.ProjectKey:
    return wire.ProjectKey(
        object="organization.project.api_key",
        id=key.id,
        name=key.name,
        redacted_value=key.redacted_value,
        created_at=key.created_at,
        last_used_at=key.last_used_at,
        expires_at=key.expires_at,
        owner=wire.ProjectKeyOwner(id=key.project_id, type="project", name=key.project_name),
        status=key.status(now).value,
        permissions=list(key.permissions),
        value=UNSET if value is None else value,
    )


def admin_key_view(key: AdminKey) -> wire.AdminKey:
    return wire.AdminKey(
        object="organization.admin_api_key",
        id=key.id,
        name=key.name,
        redacted_value=key.redacted_value,
        created_at=key.created_at,
        last_used_at=key.last_used_at,
        expires_at=key.expires_at,
        owner=wire.AdminKeyOwner(id=key.organization_id, type="organization"),
        permissions=list(key.permissions),
    )
