"""Builds a static site from the Markdown files: `make docs`. A link that leads nowhere fails it.

It begins with README.md and the index of docs/, and follows links. Markdown becomes a page at the same
place; any other file is copied; a folder becomes a list of its files. Nothing is loaded from elsewhere.
"""

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

ROOT = Path(__file__).parents[1]
_START = ("README.md", "docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_NAVIGATION = "docs/README.md"
_ELSEWHERE = ("http://", "https://", "mailto:")
_HERE = Path(__file__).parent
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - tollkeeper</title>
<link rel="stylesheet" href="{to_root}site.css">
<a class="skip" href="#content">Skip to the content</a>
<header class="side">
<div class="bar"><a href="{to_root}index.html">tollkeeper</a>
<button id="menu" type="button" aria-expanded="false" aria-controls="pages">Menu</button></div>
<form role="search">
<input id="search" type="search" placeholder="Search" aria-label="Search" autocomplete="off">
<p id="count" role="status"></p><ul id="found"></ul></form>
<nav id="pages" aria-label="Pages">{navigation}</nav>
</header>
<main id="content" tabindex="-1">{content}</main>
{contents}
<script src="{to_root}site.js" data-root="{to_root}"></script>
</html>
"""
# A page with fewer sections needs no table of contents.
_SECTIONS_MIN = 3
_SEARCHED = ("README.md", "CONTRIBUTING.md")
_LANGUAGES = {"sh": "bash", "js": "javascript"}


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
    # For the search: the title, place and text of each section.
    index: list[dict[str, str]] = field(default_factory=list)

    def build(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in ("site.css", "site.js"):
            shutil.copyfile(_HERE / name, self.folder / name)
        for name in _START:
            self._add(ROOT / name)
        while self.waiting:
            self._write(self.waiting.pop())
        index = json.dumps(self.index, ensure_ascii=False, separators=(",", ":"))
        (self.folder / "search.js").write_text(f"window.searchIndex={index};\n")
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
        reader.add_render_rule("fence", _fence)
        reader.add_render_rule("code_inline", _inline_code)
        tokens = reader.parse(text)
        self.anchors[path] = set()
        headings: list[tuple[str, str]] = []
        sections: list[dict[str, str]] = []
        title = _shown(path)
        for position, token in enumerate(tokens):
            if token.type == "heading_open":
                heading = tokens[position + 1].content
                token.attrSet("id", slug(heading))
                self.anchors[path].add(slug(heading))
                title = heading if token.tag == "h1" else title
                headings.append((token.tag, heading))
                shown = heading if heading == title else f"{title}: {heading}"
                at = f"{_place(path).as_posix()}#{slug(heading)}"
                sections.append({"title": shown.replace("`", ""), "at": at, "text": ""})
            elif token.content and sections:
                text = re.sub(r"!?[\[\]`*|]|\([^)]*\)", "", token.content)
                sections[-1]["text"] += f" {text}"
            elif token.type == "th_open" and not tokens[position + 1].content:
                # A cell without a text is no header.
                token.tag = tokens[position + 2].tag = "td"
            for inner in token.children or ():
                self._redirect(path, inner)
        if _is_searched(path):
            self.index += sections
        content = reader.renderer.render(tokens, reader.options, {})
        # A picture leads to itself, so that it can be seen larger.
        content = re.sub(
            r'<p>(<img src="([^"]+)"[^>]*>)</p>',
            r'<p class="figure"><a href="\2">\1</a></p>',
            content,
        )
        region = '<div class="table" role="group" aria-label="Table" tabindex="0"><table>'
        place.write_text(
            _PAGE.format(
                title=html.escape(title.replace("`", "")),
                to_root="../" * (len(_place(path).parts) - 1),
                navigation=self._navigation(path),
                content=content.replace("<table>", region).replace("</table>", "</table></div>"),
                contents=_contents(headings),
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


def _fence(
    _renderer: RendererHTML, tokens: Sequence[Token], position: int, _options: object, _env: object
) -> str:
    """A block of code with its colours. What follows the language says how tests treat the block."""
    token = tokens[position]
    language = token.info.split(" ")[0]
    try:
        lexer = get_lexer_by_name(_LANGUAGES.get(language, language))
    except ClassNotFound:
        lexer = TextLexer()
    code = highlight(token.content, lexer, HtmlFormatter(nowrap=True))
    return f'<div class="code"><pre tabindex="0"><code>{code}</code></pre></div>\n'


def _inline_code(
    _renderer: RendererHTML, tokens: Sequence[Token], position: int, _options: object, _env: object
) -> str:
    """Write a name in a sentence or a table. A long name is broken after a mark, not inside of a word."""
    name = re.sub(r"(?<=\w)([/._])(?=\w)", r"\1<wbr>", html.escape(tokens[position].content))
    return f"<code>{name}</code>"


def _contents(headings: Sequence[tuple[str, str]]) -> str:
    links = [
        f'<a href="#{slug(heading)}"{" class=deeper" if tag == "h3" else ""}>{_plain(heading)}</a>'
        for tag, heading in headings
        if tag in ("h2", "h3")
    ]
    if len(links) < _SECTIONS_MIN:
        return ""
    return (
        f'<nav class="contents" aria-label="On this page"><p>On this page</p>{"".join(links)}</nav>'
    )


def _plain(heading: str) -> str:
    return html.escape(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", ""))


def _is_searched(path: Path) -> bool:
    """The documents, but neither folders nor the history."""
    inside = path.relative_to(ROOT)
    return path.is_file() and (inside.parts[0] == "docs" or inside.name in _SEARCHED)


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
