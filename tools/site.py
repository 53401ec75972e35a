"""Builds a static site from the Markdown files: `make docs`. A link that leads nowhere fails it.

It begins with README.md and the index of docs/, and follows links. Markdown becomes a page at the same
place; any other file is copied; a folder becomes a list of its files. Nothing is loaded from elsewhere.
"""

import html
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
_START = ("README.md", "docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_NAVIGATION = "docs/README.md"
_ELSEWHERE = ("http://", "https://", "mailto:")
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - tollkeeper</title>
<link rel="stylesheet" href="{to_root}site.css">
<nav aria-label="Pages"><a href="{to_root}index.html"><strong>tollkeeper</strong></a>{navigation}</nav>
<main>{content}</main>
</html>
"""
_STYLE = """:root { color-scheme: light dark; --line: light-dark(#ccd2d8, #3a424a); }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; display: flex; }
nav { box-sizing: border-box; width: 15rem; flex: none; padding: 1.5rem 1rem; height: 100vh; overflow: auto;
      position: sticky; top: 0; border-right: 1px solid var(--line); font-size: .9rem; }
nav a { display: block; padding: .15rem 0; text-decoration: none; color: inherit; }
nav a:hover, nav a[aria-current] { text-decoration: underline; }
nav p { margin: 1rem 0 .2rem; opacity: .65; }
main { padding: 1rem 2rem 4rem; max-width: 60rem; min-width: 0; }
pre, table { display: block; overflow-x: auto; }
pre { padding: .8rem 1rem; border: 1px solid var(--line); border-radius: .4rem; }
code { font: .9em/1.45 ui-monospace, monospace; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
img { max-width: 100%; }
@media (max-width: 50rem) { body { display: block; }
  nav { width: auto; height: auto; position: static; border-right: 0; } main { padding: 1rem; } }
"""


def slug(heading: str) -> str:
    """The anchor of a heading, made as the usual viewers make it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


@dataclass
class Site:
    """One building of the site: what is still to be written, and what is wrong."""

    folder: Path
    waiting: list[Path] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)
    anchors: dict[Path, set[str]] = field(default_factory=dict)
    # Source, link as written, target, anchor: looked at when every page is known.
    anchored: list[tuple[Path, str, Path, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def build(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "site.css").write_text(_STYLE)
        for name in _START:
            self._add(ROOT / name)
        while self.waiting:
            self._write(self.waiting.pop())
        for source, link, target, anchor in self.anchored:
            if target in self.anchors and anchor not in self.anchors[target]:
                self.problems.append(f"{_shown(source)}: {link} names no heading")

    def _add(self, path: Path) -> None:
        if path not in self.seen:
            self.seen.add(path)
            self.waiting.append(path)

    def _write(self, path: Path) -> None:
        place = self.folder / _place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            files = sorted(inner for inner in path.iterdir() if not inner.name.startswith("."))
            lines = [f"- [{inner.name}]({inner.name})" for inner in files]
            self._write_page(path, place, "\n".join([f"# {_shown(path)}", "", *lines]))
        elif path.suffix == ".md":
            self._write_page(path, place, path.read_text())
        else:
            shutil.copyfile(path, place)

    def _write_page(self, path: Path, place: Path, text: str) -> None:
        reader = MarkdownIt("commonmark").enable("table")
        tokens = reader.parse(text)
        self.anchors[path] = set()
        title = _shown(path)
        for position, token in enumerate(tokens):
            if token.type == "heading_open":
                heading = tokens[position + 1].content
                token.attrSet("id", slug(heading))
                self.anchors[path].add(slug(heading))
                title = heading if token.tag == "h1" else title
            for inner in token.children or ():
                self._redirect(path, inner)
        navigation = self._navigation(path)
        to_root = "../" * (len(_place(path).parts) - 1)
        place.write_text(
            _PAGE.format(
                title=html.escape(title.replace("`", "")),
                to_root=to_root,
                navigation=navigation,
                content=reader.renderer.render(tokens, reader.options, {}),
            )
        )

    def _redirect(self, source: Path, token: Token) -> None:
        """Lets a link or image lead to the place of its target in the site."""
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        link = str(token.attrGet(attribute) or "") if attribute else ""
        if not attribute or not link or link.startswith(_ELSEWHERE):
            return
        name, _, anchor = link.partition("#")
        base = source if source.is_dir() else source.parent
        target = (base / name).resolve() if name else source
        if not target.exists() or not target.is_relative_to(ROOT):
            self.problems.append(f"{_shown(source)}: {link} leads nowhere")
            return
        self._add(target)
        if anchor:
            self.anchored.append((source, link, target, anchor))
        there = os.path.relpath(_place(target), _place(source).parent)
        token.attrSet(attribute, there + (f"#{anchor}" if anchor else ""))

    def _navigation(self, current: Path) -> str:
        """The links of the index, each table under the heading of its first column."""
        index = ROOT / _NAVIGATION
        parts = []
        for line in index.read_text().splitlines():
            heading = re.match(r"\| ([\w ]+) \| \|$", line)
            entry = re.match(r"\| \[([^]]+)\]\(([^)]+)\)", line)
            if heading:
                parts.append(f"<p>{html.escape(heading[1])}</p>")
            elif entry:
                target = (index.parent / entry[2]).resolve()
                there = os.path.relpath(_place(target), _place(current).parent)
                here = ' aria-current="page"' if target == current else ""
                parts.append(f'<a href="{there}"{here}>{html.escape(entry[1])}</a>')
        return "".join(parts)


def _place(path: Path) -> Path:
    """Where a file of the repository lies in the site."""
    inside = path.relative_to(ROOT)
    if path.is_dir():
        return inside / "index.html"
    if path.name == "README.md":
        return inside.with_name("index.html")
    return inside.with_suffix(".html") if path.suffix == ".md" else inside


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def build(folder: Path) -> list[str]:
    """Writes the site into a folder, which is emptied first, and returns what is wrong."""
    site = Site(folder)
    site.build()
    return site.problems


def main() -> None:
    folder = ROOT / "site"
    problems = build(folder)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    if problems:
        sys.exit(1)
    sys.stdout.write(f"{folder / 'index.html'}\n")


if __name__ == "__main__":
    main()
