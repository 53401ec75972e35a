"""Tests that the overview and the alerts page show raised alerts."""

import re
from pathlib import Path

from tools.site import slug

from tests.support.console_site import TOKEN, ConsoleSite, all_well, no_replicas, serving_console
from tests.support.http_client import http_client
from tollkeeper.console.context import MachineChecks
from tollkeeper.console.pages.alerts import SECTIONS
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.reports.alerts.rule import AlertKind, StandingAlert

_RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()


async def test_raised_alerts_are_on_both_pages_with_what_to_do(site: ConsoleSite) -> None:
    """The pages show the alerts in the database and the alerts of the gateway on this machine."""
    scripted = site.judged.scripted
    organization = scripted.tenant.organization_id
    await site.judged.entry(await site.judged.chat())
    await scripted.balance()
    await site.services.caps.cap_set(organization, 1, CapPeriod.MONTH)
    await site.services.alerts.check()

    async def of_gateway() -> list[StandingAlert]:
        return [StandingAlert(AlertKind.NOT_READY, 100, {"gateway": "here"}, "no backend", 5)]

    machine = MachineChecks(no_replicas, of_gateway, all_well)
    async with (
        serving_console(site.settings, site.services, machine=machine) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        pages = [(await client.get(path)).text for path in ("/", "/alerts")]
    name = (await site.services.organizations.organization_show(organization)).name
    for page in pages:
        rows = re.findall(r"<tr>.*?</tr>", page.partition('id="alerts"')[2], re.DOTALL)[1:]
        assert "not ready" in rows[0], "the oldest is first"
        assert "runbook, “Not ready”" in rows[0]
        full = next(row for row in rows if "cap" in row and name in row)
        assert f'href="/organizations/{organization}"' in full
        assert "runbook, “Cap used”" in full
        assert "<time" in full
    await site.services.caps.cap_clear(organization)
    await site.services.alerts.check()
    without = [
        alert.subject.get("organization_id") for alert in await site.services.alerts.alert_list()
    ]
    assert str(organization) not in without


def test_every_kind_has_its_section_of_the_runbook() -> None:
    assert set(SECTIONS) == set(AlertKind)
    for kind, section in SECTIONS.items():
        text = _RUNBOOK.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert f"`{kind}`" in text, section
        assert slug(section) == section.lower().replace(" ", "-")
