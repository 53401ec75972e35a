"""Creates a demo organization with a project, keys and credit."""

import secrets
from dataclasses import dataclass

from tollkeeper.core.access import ADMIN_PERMISSIONS, PROJECT_KEY_PERMISSIONS
from tollkeeper.core.errors import StateConflict
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.money.credit.service import Accounts
from tollkeeper.tenants.admin_keys import AdminKeys
from tollkeeper.tenants.organizations import Organizations
from tollkeeper.tenants.project_keys import ProjectKeys
from tollkeeper.tenants.projects import Projects

DEMO_CREDIT_USD = "10"
_NAME = "Demo"


@dataclass(frozen=True, slots=True)
class DemoTenant:
    organization_id: str
    project_id: str
    admin_key: str
    project_key: str


@dataclass(frozen=True, slots=True)
class Demonstration:
    organizations: Organizations
    projects: Projects
    admin_keys: AdminKeys
    project_keys: ProjectKeys
    accounts: Accounts

    async def demo_create(self) -> DemoTenant:
        try:
            organization = await self.organizations.organization_create(_NAME)
        except StateConflict:  # There is an earlier demo, whose keys cannot be shown again.
            organization = await self.organizations.organization_create(
                f"{_NAME} {secrets.token_hex(4)}"
            )
        project = await self.projects.project_create(organization.id, "Demo project")
        _, admin_key = await self.admin_keys.admin_key_create(
            organization.id, "demo admin", ADMIN_PERMISSIONS, None
        )
        _, project_key = await self.project_keys.project_key_create_by_operator(
            project.id, "demo app", PROJECT_KEY_PERMISSIONS, None
        )
        await self.accounts.credit_grant(
            organization.id, picousd_from_usd(DEMO_CREDIT_USD), "demo credit"
        )
        return DemoTenant(str(organization.id), str(project.id), admin_key, project_key)
