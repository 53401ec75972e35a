"""Tests the doctor in a console that was started as users start it."""

import re
from pathlib import Path

from tests.support.console_site import ConsoleSite, form_fields
from tests.support.http_client import http_client
from tests.support.started_console import started_console


async def test_the_doctor_reports_in_a_console_that_a_command_started(
    site: ConsoleSite, conninfo: str, tmp_path: Path
) -> None:
    with started_console(site, conninfo, tmp_path) as started:
        async with http_client(started.address) as client:
            await client.post("/sign-in", data={"token": started.token})
            page = await client.post("/doctor", data=await form_fields(client, "once"))
        assert page.status_code == 200, started.log.read_text()
    findings = page.text[page.text.index('id="findings"') :]
    assert {"settings", "database", "judge"} <= set(re.findall(r">\s*([^<>]+?)\s*<", findings))
