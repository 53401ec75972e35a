"""Tests that the demo stores its keys, and creates new ones if the database does not have them."""

import secrets
from pathlib import Path

import pytest

from tests.support.databases import own_database
from tollkeeper.core.errors import Unauthenticated
from tollkeeper.entry.commands.demo import _demo_tenant
from tollkeeper.setup import running_services
from tollkeeper.setup.demonstration import DemoTenant
from tollkeeper.setup.settings import Settings


async def _authenticate(settings: Settings, conninfo: str, tenant: DemoTenant) -> None:
    async with running_services(settings, conninfo) as services:
        for key in (tenant.admin_key, tenant.project_key):
            caller = await services.authentication.authenticate(key)
            assert str(caller.organization_id) == tenant.organization_id


async def test_another_database_gets_new_keys(conninfo: str, tmp_path: Path) -> None:
    settings = Settings.model_validate({"database": {"data_dir": str(tmp_path)}})
    first, second = (own_database(conninfo, f"demo_{secrets.token_hex(4)}") for _ in range(2))
    tenant = await _demo_tenant(settings, first)
    assert await _demo_tenant(settings, first) == tenant
    other = await _demo_tenant(settings, second)
    await _authenticate(settings, second, other)
    with pytest.raises(Unauthenticated):
        await _authenticate(settings, second, tenant)
    assert await _demo_tenant(settings, second) == other
    assert (tmp_path / "demo.json").stat().st_mode & 0o777 == 0o600
