"""Runs a real gateway on a real socket, and creates tenants and headers for requests to it."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import uuid4

import httpx2

from tests.support.http_client import http_client
from tollkeeper.core.access import (
    ADMIN_PERMISSIONS,
    PROJECT_KEY_PERMISSIONS,
    KeyKind,
    OrganizationId,
    ProjectId,
)
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.faces.app import App
from tollkeeper.http.arrivals import fair_arrivals
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.setup import build_app, running_services
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.keys import mint_key

# Writes the same rows as the services for an organization, a project, two keys and a grant, but no
# audit entries. `tests/tenants/test_created_rows.py` compares the rows.
_CREATE_TENANT: LiteralString = """
    WITH new_organization AS (
        INSERT INTO organizations (id, name, created_at)
        VALUES (%(organization)s, %(organization_name)s, to_timestamp(%(now)s))
    ), new_account AS (
        INSERT INTO accounts (organization_id, granted, available)
        VALUES (%(organization)s, %(credit)s, %(credit)s)
    ), new_project AS (
        INSERT INTO projects (organization_id, id, name, created_at)
        VALUES (%(organization)s, %(project)s, %(project_name)s, to_timestamp(%(now)s))
    ), new_project_account AS (
        INSERT INTO project_accounts (organization_id, project_id)
        VALUES (%(organization)s, %(project)s)
    ), new_admin_key AS (
        INSERT INTO admin_keys
            (organization_id, id, name, digest, redacted_value, permissions, created_at)
        VALUES (%(organization)s, gen_random_uuid(), 'root', %(admin_digest)s,
            %(admin_redacted)s, %(admin_permissions)s, clock_timestamp())
    ), new_project_key AS (
        INSERT INTO project_keys
            (organization_id, id, project_id, name, digest, redacted_value, permissions, created_at)
        VALUES (%(organization)s, gen_random_uuid(), %(project)s, 'app', %(project_digest)s,
            %(project_redacted)s, %(project_permissions)s, to_timestamp(%(now)s))
    )
    INSERT INTO grants (organization_id, id, amount, note)
    SELECT %(organization)s, gen_random_uuid(), %(credit)s::numeric, 'test'
    WHERE %(credit)s::numeric <> 0
"""


@dataclass(frozen=True)
class Tenant:
    """Contains an organization with a project, and keys that have every permission of their kind."""

    organization_id: OrganizationId
    project_id: ProjectId
    admin_key: str
    project_key: str

    @property
    def as_admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_key}"}

    @property
    def as_customer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.project_key}"}


@dataclass(frozen=True)
class Gateway:
    base_url: str
    services: Services
    client: httpx2.AsyncClient
    clock: Clock = unix_now
    app: App | None = None

    async def make_tenant(
        self, name: str = "Acme", *, credit: int = 0, forgets_excesses: bool = True
    ) -> Tenant:
        """Creates a tenant, in one statement because almost every test needs one. The organization's name
        only begins with `name`, because names are unique and tests share databases. Tests also share
        the names of models, so by default the excesses of earlier tests are forgotten."""
        organization, project = OrganizationId(uuid4()), ProjectId(uuid4())
        admin, customer = mint_key(KeyKind.ADMIN), mint_key(KeyKind.PROJECT)
        values = {
            "organization": organization,
            "organization_name": f"{name} {secrets.token_hex(8)}",
            "project": project,
            "project_name": f"{name} project",
            "admin_digest": admin.digest,
            "admin_redacted": admin.redacted_value,
            "admin_permissions": sorted(ADMIN_PERMISSIONS),
            "project_digest": customer.digest,
            "project_redacted": customer.redacted_value,
            "project_permissions": sorted(PROJECT_KEY_PERMISSIONS),
            "now": self.clock(),
            "credit": credit,
        }
        async with self.services.database.autocommit() as connection:
            await connection.execute(_CREATE_TENANT, values)
            if forgets_excesses:
                await connection.execute("DELETE FROM observed_excesses")
        if forgets_excesses:
            await self.services.excesses.load()
        return Tenant(organization, project, admin.value, customer.value)

    async def make_recorded_tenant(self, name: str = "Acme") -> Tenant:
        """Creates a tenant through the services, which record this in the audit."""
        organization = await self.services.organizations.organization_create(
            f"{name} {secrets.token_hex(8)}"
        )
        project = await self.services.projects.project_create(organization.id, f"{name} project")
        _, admin_key = await self.services.admin_keys.admin_key_create(
            organization.id, "root", ADMIN_PERMISSIONS, None
        )
        _, project_key = await self.services.project_keys.project_key_create_by_operator(
            project.id, "app", PROJECT_KEY_PERMISSIONS, None
        )
        return Tenant(organization.id, project.id, admin_key, project_key)

    async def admin_key(self, tenant: Tenant, *permissions: str) -> dict[str, str]:
        """Returns the headers of a new admin key with only these permissions."""
        _, value = await self.services.admin_keys.admin_key_create(
            tenant.organization_id, f"limited {secrets.token_hex(8)}", permissions, None
        )
        return {"Authorization": f"Bearer {value}"}

    async def make_policy(self, tenant: Tenant, **fields: Any) -> dict[str, Any]:
        body = {"name": "No secrets", "rule": "Does the text contain a secret?", **fields}
        answer = await self.client.post(
            "/v1/organization/policies", json=body, headers={**tenant.as_admin, **idempotency_key()}
        )
        assert answer.status_code == 200, answer.text
        created: dict[str, Any] = answer.json()
        return created


def idempotency_key() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_hex(16)}


def assert_error(answer: httpx2.Response, status: int, code: str, param: str | None = None) -> None:
    """Checks all fields of an error envelope."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "type", "param", "request_id", "doc_url"}
    assert error["code"] == code, error
    assert error["param"] == param, error
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


@asynccontextmanager
async def running_gateway(
    settings: Settings,
    conninfo: str,
    *,
    clock: Clock = unix_now,
    engine: EngineAddress | None = None,
) -> AsyncIterator[Gateway]:
    """Runs the real server on a free port, in this event loop."""
    listener = bind("127.0.0.1", 0, setting="test")
    base_url = f"http://{address_of(listener)}"
    async with running_services(
        settings, conninfo, clock=clock, engine=engine, serving=True
    ) as services:
        app = build_app(settings, services)
        calls = services.inference
        arrivals = fair_arrivals(calls.serves_others, lambda: calls.overload.is_full)
        server = HttpServer(app, http_limits(), arrivals, app.error_style)
        await server.start(listener)
        async with http_client(base_url) as client:
            try:
                yield Gateway(base_url, services, client, clock, app)
            finally:
                await server.drain(5)
