"""Tests that the documentation site is complete, loads nothing from elsewhere, and reports bad links."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser

from tests.journeys.clients.environments import AXE_PROJECT, NotInstalled, node_environment
from tests.support.browser import NoBrowser, find_or_install, running_browser
from tools import site

pytestmark = pytest.mark.slow


def test_every_page_is_there_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    assert site.build(tmp_path) == []
    pages = sorted(tmp_path.rglob("*.html"))
    names = {page.relative_to(tmp_path).as_posix() for page in pages}
    assert {"index.html", "docs/index.html", "docs/api.html", "docs/guides/keys.html"} <= names
    for page in pages:
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            if not link.startswith(("http://", "https://")):
                target, _, anchor = link.partition("#")
                found = (page.parent / target).resolve() if target else page
                assert found.is_file(), f"{page}: {link}"
                assert not anchor or f'id="{anchor}"' in found.read_text(), f"{page}: {link}"


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    site.build(tmp_path)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        to_root = "../" * (len(page.relative_to(tmp_path).parts) - 1)
        # The only script is the site's own file; there are no inline scripts.
        assert re.findall(r"<script[^>]*>", text) == [
            f'<script src="{to_root}site.js" data-root="{to_root}">'
        ]
        assert re.findall(r'(?:src|<link[^>]*href)="https?:', text) == []


def test_every_section_can_be_found(tmp_path: Path) -> None:
    site.build(tmp_path)
    text = (tmp_path / "search.js").read_text()
    index = json.loads(text.removeprefix("window.searchIndex=").rstrip(";\n"))
    places = {entry["at"]: entry for entry in index}
    found = places["docs/unsettled.html#who-was-charged"]
    assert found["title"] == "Unsettled calls: Who was charged"
    assert "another replica" in found["text"]
    for at in places:
        page, _, anchor = at.partition("#")
        assert f'id="{anchor}"' in (tmp_path / page).read_text()


def test_code_is_coloured_and_pages_have_contents(tmp_path: Path) -> None:
    site.build(tmp_path)
    page = (tmp_path / "docs" / "guides" / "connect-a-backend.html").read_text()
    assert '<span class="s2">"vllm"</span>' in page
    assert '<nav class="contents" aria-label="On this page">' in page
    assert "not-run" not in page


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    try:
        chromium = await asyncio.to_thread(find_or_install)
    except NoBrowser as exc:
        pytest.fail(str(exc), pytrace=False)
    async with running_browser(chromium) as running:
        yield running


@pytest.fixture(scope="module")
async def axe_script() -> str:
    try:
        node = await asyncio.to_thread(node_environment, AXE_PROJECT, "axe")
    except NotInstalled as exc:
        pytest.fail(str(exc), pytrace=False)
    return (node.project / "node_modules" / "axe-core" / "axe.min.js").read_text()


_WIDTHS = (320, 768, 1440)
_OVERFLOWING = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


async def test_no_page_is_wider_than_the_screen(browser: Browser, tmp_path: Path) -> None:
    await asyncio.to_thread(site.build, tmp_path)
    page = await browser.new_page()
    wide = []
    for file in sorted((tmp_path / "docs").rglob("*.html")):
        await page.goto(file.as_uri())
        for width in _WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            if await page.evaluate(_OVERFLOWING):
                wide.append((file.name, width))
    assert wide == []


@pytest.mark.parametrize("width", [360, 1024])
async def test_a_narrow_screen_has_the_contents_above_the_text(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    await asyncio.to_thread(site.build, tmp_path)
    page = await browser.new_page(viewport={"width": width, "height": 800})
    await page.goto((tmp_path / "docs" / "troubleshooting.html").as_uri())
    contents = page.get_by_role("navigation", name="On this page")
    link = contents.get_by_role("link", name="Money looks wrong")
    summary = contents.get_by_text("On this page")
    above, text = await summary.bounding_box(), await page.locator("h1").bounding_box()
    assert above is not None
    assert text is not None
    assert above["y"] + above["height"] <= text["y"]
    assert above["x"] >= 0
    assert not await link.is_visible()
    await summary.focus()
    await page.keyboard.press("Enter")
    await link.click()
    await page.wait_for_url("**/troubleshooting.html#money-looks-wrong")
    # On a wide screen, the links are beside the text.
    await page.set_viewport_size({"width": 1440, "height": 800})
    await link.wait_for()
    beside, text = await link.bounding_box(), await page.locator("main").bounding_box()
    assert beside is not None
    assert text is not None
    assert beside["x"] >= text["x"] + text["width"]


async def test_without_scripts_the_contents_are_open(browser: Browser, tmp_path: Path) -> None:
    await asyncio.to_thread(site.build, tmp_path)
    context = await browser.new_context(
        java_script_enabled=False, viewport={"width": 360, "height": 800}
    )
    page = await context.new_page()
    await page.goto((tmp_path / "docs" / "troubleshooting.html").as_uri())
    contents = page.get_by_role("navigation", name="On this page")
    assert await contents.get_by_role("link", name="Money looks wrong").is_visible()
    await context.close()


async def test_search_menu_and_copy_work(browser: Browser, tmp_path: Path) -> None:
    await asyncio.to_thread(site.build, tmp_path)
    page = await browser.new_page(viewport={"width": 360, "height": 800})
    await page.goto((tmp_path / "docs" / "backup.html").as_uri())
    menu = page.get_by_role("button", name="Menu")
    pages = page.get_by_role("navigation", name="Pages")
    assert not await pages.is_visible()
    await menu.focus()
    await page.keyboard.press("Enter")
    await pages.wait_for()
    assert await menu.get_attribute("aria-expanded") == "true"
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy").first.click()
    await page.get_by_role("button", name="Copied").wait_for()
    assert "archive_mode = on" in await page.evaluate("navigator.clipboard.readText()")
    await page.keyboard.press("/")
    await page.keyboard.type("overage bound")
    await page.locator('a[href$="money.html#overage"]').first.click()
    await page.wait_for_url("**/money.html#overage")
    await page.get_by_role("searchbox").fill("zzzz")
    await page.get_by_text("Nothing was found.").wait_for()


async def test_axe_reports_nothing(browser: Browser, axe_script: str, tmp_path: Path) -> None:
    """Checks four pages, narrow and light as well as wide and dark. All pages have the same frame."""
    await asyncio.to_thread(site.build, tmp_path)
    found = []
    schemes: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 360), ("dark", 1440))
    for scheme, width in schemes:
        page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for name in ("index", "money", "guides/connect-a-backend", "troubleshooting"):
            await page.goto((tmp_path / "docs" / f"{name}.html").as_uri())
            await page.evaluate(axe_script)
            # Returns only the violations, because the full report has megabytes.
            violations = await page.evaluate(
                "axe.run({resultTypes: ['violations']}).then(({violations}) =>"
                " violations.map(({id, nodes}) => [id, nodes[0].html]))"
            )
            found += [(name, width, *violation) for violation in violations]
    assert found == []


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](docs/missing.md)", "README.md: docs/missing.md leads nowhere"),
        ("![a](docs/missing.png)", "README.md: docs/missing.png leads nowhere"),
        ("[a](../elsewhere.md)", "README.md: ../elsewhere.md leads nowhere"),
        ("[a](docs/README.md#missing)", "README.md: docs/README.md#missing names no heading"),
    ],
)
def test_a_broken_link_is_named(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (tmp_path / "elsewhere.md").touch()
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "docs/README.md"):
        (root / name).write_text("# Title\n")
    (root / "README.md").write_text(f"# Title\n\n{text}\n")
    monkeypatch.setattr(site, "ROOT", root)
    assert site.build(tmp_path / "site") == [problem]
