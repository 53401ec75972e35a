"""The site from the documents: whole, closed, and it fails where a link leads nowhere."""

import re
from pathlib import Path

import pytest

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
        assert "<script" not in page.read_text()
        assert re.findall(r'(?:src|<link[^>]*href)="https?:', page.read_text()) == []


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
