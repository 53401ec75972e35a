"""Tests a console that was started as users start it: as a process, by a command."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.console_site import ConsoleSite, form_fields
from tests.support.databases import data_dir_beside, database_url
from tests.support.http_client import http_client
from tests.support.program import Program, running_console


@pytest.fixture
def started(site: ConsoleSite, conninfo: str, tmp_path: Path) -> Iterator["_Started"]:
    """Starts a console with the settings of the site, and thereby with its gateway and judge."""
    written = site.settings.model_dump(mode="json", exclude_defaults=True)
    folder = data_dir_beside(site.settings.database.data_dir, conninfo)
    written["database"] = {"data_dir": str(folder), "url": database_url(conninfo)}
    written["console"] = {"port": 0}
    environment = {f"TOLLKEEPER_{name.upper()}": json.dumps(part) for name, part in written.items()}
    (tmp_path / "tollkeeper.toml").touch()
    program = Program(tmp_path / "tollkeeper.toml", tmp_path, environment)
    with running_console(program, log=tmp_path / "console.log") as (_, printed):
        yield _Started(printed["console"], printed["operator_token"], tmp_path / "console.log")


@dataclass(frozen=True)
class _Started:
    address: str
    token: str
    log: Path


async def test_the_doctor_reports_in_a_console_that_a_command_started(started: _Started) -> None:
    async with http_client(started.address) as client:
        await client.post("/sign-in", data={"token": started.token})
        page = await client.post("/doctor", data=await form_fields(client, "once"))
    assert page.status_code == 200, started.log.read_text()
    findings = page.text[page.text.index('id="findings"') :]
    assert {"settings", "database", "judge"} <= set(re.findall(r">\s*([^<>]+?)\s*<", findings))
