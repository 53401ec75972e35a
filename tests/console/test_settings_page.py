"""Tests that the settings page shows values as an operator writes them, and not as Python does."""

import re

import pytest

from tests.support.console_site import ConsoleSite, Watched
from tests.support.scripted_gateway import MODEL

pytestmark = pytest.mark.slow

_PYTHON = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|[{\[(=]'|Path\(")


async def test_no_value_is_written_in_python(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    for path in ("/settings", "/backends"):
        await page.goto(f"{site.address}{path}")
        content = await page.locator("main").text_content()
        assert content is not None
        assert _PYTHON.findall(content) == []
    await page.goto(f"{site.address}/settings")
    model = page.get_by_role("region", name=f"models[{MODEL}]", exact=True).first
    pricing = model.get_by_role("row").filter(has=page.get_by_text("pricing", exact=True))
    shown = await pricing.locator("td").first.inner_text()
    assert shown == '{ prompt = "0.0000002", completion = "0.0000008" }'
