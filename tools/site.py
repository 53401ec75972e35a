"""Builds the documentation site from Markdown files (`make docs`). Fails if a link has no target.

The build begins with README.md and the index of docs/, and follows their links. A Markdown file becomes a
page at the same path, a folder becomes a page with a list of its files, and any other file is copied. The
pages load nothing from other servers.
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
_EXTERNAL = ("http://", "https://", "mailto:")
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
{contents}
<main id="content" tabindex="-1">{content}</main>
<script src="{to_root}site.js" data-root="{to_root}"></script>
</html>
"""
# The minimum number of sections for a table of contents.
_SECTIONS_MIN = 3
_SEARCHED_FILES = ("README.md", "CONTRIBUTING.md")
_LANGUAGES = {"sh": "bash", "js": "javascript"}


def slug(heading: str) -> str:
    """Returns the anchor of a heading, computed in the same way as by common Markdown viewers."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


@dataclass
class Site:
    """Builds the site once."""

    folder: Path
    # Files and folders that are still to be written.
    waiting: list[Path] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)
    anchors: dict[Path, set[str]] = field(default_factory=dict)
    # Links with an anchor, as source file, link text, target file and anchor. They are checked after all
    # pages are written.
    anchored: list[tuple[Path, str, Path, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # The search index: the title, address and text of each section.
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
        output = self.folder / _site_path(path)
        output.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            files = sorted(inner for inner in path.iterdir() if not inner.name.startswith("."))
            lines = [f"- [{inner.name}]({inner.name})" for inner in files]
            self._write_page(path, output, "\n".join([f"# {_shown(path)}", "", *lines]))
        elif path.suffix == ".md":
            self._write_page(path, output, path.read_text())
        else:
            shutil.copyfile(path, output)

    def _write_page(self, path: Path, output: Path, text: str) -> None:
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
                at = f"{_site_path(path).as_posix()}#{slug(heading)}"
                sections.append({"title": shown.replace("`", ""), "at": at, "text": ""})
            elif token.content and sections:
                text = re.sub(r"!?[\[\]`*|]|\([^)]*\)", "", token.content)
                sections[-1]["text"] += f" {text}"
            elif token.type == "th_open" and not tokens[position + 1].content:
                # An empty cell in the first row of a table is not marked as a header.
                token.tag = tokens[position + 2].tag = "td"
            for inner in token.children or ():
                self._redirect(path, inner)
        if _is_searched(path):
            self.index += sections
        content = reader.renderer.render(tokens, reader.options, {})
        # A picture becomes a link to its file, so that a reader can open it in full size.
        content = re.sub(
            r'<p>(<img src="([^"]+)"[^>]*>)</p>',
            r'<p class="figure"><a href="\2">\1</a></p>',
            content,
        )
        region = '<div class="table" role="group" aria-label="Table" tabindex="0"><table>'
        output.write_text(
            _PAGE.format(
                title=html.escape(title.replace("`", "")),
                to_root="../" * (len(_site_path(path).parts) - 1),
                navigation=self._navigation(path),
                content=content.replace("<table>", region).replace("</table>", "</table></div>"),
                contents=_contents(headings),
            )
        )

    def _redirect(self, source: Path, token: Token) -> None:
        """Replaces the target of a link or image by the target's path in the site."""
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        link = str(token.attrGet(attribute) or "") if attribute else ""
        if not attribute or not link or link.startswith(_EXTERNAL):
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
        there = os.path.relpath(_site_path(target), _site_path(source).parent)
        token.attrSet(attribute, there + (f"#{anchor}" if anchor else ""))

    def _navigation(self, current: Path) -> str:
        """Returns the links in the index of docs/, grouped by table. The heading of each table's first column
        is the heading of the group."""
        index = ROOT / _NAVIGATION
        parts = []
        for line in index.read_text().splitlines():
            heading = re.match(r"\| ([\w ]+) \| \|$", line)
            entry = re.match(r"\| \[([^]]+)\]\(([^)]+)\)", line)
            if heading:
                parts.append(f"<p>{html.escape(heading[1])}</p>")
            elif entry:
                target = (index.parent / entry[2]).resolve()
                there = os.path.relpath(_site_path(target), _site_path(current).parent)
                here = ' aria-current="page"' if target == current else ""
                parts.append(f'<a href="{there}"{here}>{html.escape(entry[1])}</a>')
        return "".join(parts)


def _fence(
    _renderer: RendererHTML, tokens: Sequence[Token], position: int, _options: object, _env: object
) -> str:
    """Renders a block of code with syntax colours. Only the first word after the fence is the language; the
    others tell the tests how to treat the block."""
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
    """Renders inline code. Allows line breaks after slashes, dots and underscores, so that long names are
    not broken inside a word."""
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
    # The element is open, so that wide screens show the links without a script. site.js closes it on narrow
    # screens.
    return (
        '<nav class="contents" aria-label="On this page"><details open><summary>On this page</summary>'
        f"{''.join(links)}</details></nav>"
    )


def _plain(heading: str) -> str:
    return html.escape(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", ""))


def _is_searched(path: Path) -> bool:
    """Tells whether the search covers a file: the documents, but neither folders nor the changelog."""
    inside = path.relative_to(ROOT)
    return path.is_file() and (inside.parts[0] == "docs" or inside.name in _SEARCHED_FILES)


def _site_path(path: Path) -> Path:
    """Returns the path in the site for a file or folder of the repository."""
    inside = path.relative_to(ROOT)
    if path.is_dir():
        return inside / "index.html"
    if path.name == "README.md":
        return inside.with_name("index.html")
    return inside.with_suffix(".html") if path.suffix == ".md" else inside


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def build(folder: Path) -> list[str]:
    """Writes the site into a folder, which is emptied first. Returns a list of broken links."""
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
