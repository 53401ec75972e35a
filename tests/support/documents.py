"""Reads the documents for tests: fenced blocks, their commands, and links.

The first word after a fence is the language; a block without a language contains commands (`sh`). The
next words exempt the block from the test of its language, and give the reason:

    ```sh not-run: needs a cluster
    ```toml not-settings: a file of another program
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.site import slug

ROOT = Path(__file__).parents[2]
# Other tests read CONTRIBUTING.md.
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(tollkeeper [^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_HEREDOC = re.compile(r"\\\n\s*")


@dataclass(frozen=True, slots=True)
class Block:
    """Contains a fenced block and its place (file and line)."""

    place: str
    language: str
    # For example "not-run: needs a cluster"; empty if the block is not exempt.
    exemption: str
    text: str

    @property
    def runs(self) -> bool:
        return not self.exemption.startswith("not-run: ")

    @property
    def commands(self) -> list[str]:
        """Returns the commands of a block in sh. If some lines have a prompt, the others are output."""
        prompted = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        text = "\n".join(prompted) if prompted else _HEREDOC.sub(" ", self.text)
        commands, quoted = [], ""
        for line in text.splitlines():
            quoted = f"{quoted}\n{line}" if quoted else line
            if quoted.count("'") % 2 == 0:
                commands.append(quoted.strip())
                quoted = ""
        assert not quoted, f"{self.place}: a quote is not closed"
        parts = [part for command in commands for part in command.split(" && ")]
        return [part for part in parts if part and not part.startswith("#")]


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        language, _, exemption = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(f"{shown(path)}:{line}", language or "sh", exemption, match["text"]))
    assert text.count("\n```") + text.startswith("```") == 2 * len(found), path
    return found


def blocks_below(path: Path, heading: str) -> list[Block]:
    """Returns the blocks between a heading of the second level and the next one."""
    beginning, _, rest = path.read_text().partition(f"\n## {heading}\n")
    first = beginning.count("\n") + 1
    last = first + rest.partition("\n## ")[0].count("\n")
    return [
        block
        for block in blocks_of(path)
        if first < int(block.place.rpartition(":")[2]) <= last + 1
    ]


def all_blocks(*languages: str) -> list[Block]:
    found = [block for path in DOCUMENTS for block in blocks_of(path)]
    return [block for block in found if not languages or block.language in languages]


def mentions_of(path: Path) -> list[str]:
    """Returns the commands that sentences mention."""
    return [span.replace("\n", " ") for span in _SPAN.findall(_BLOCK.sub("", path.read_text()))]


def links_of(path: Path) -> list[str]:
    """Returns the targets of links and images, except in code."""
    prose = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", path.read_text()))
    return _LINK.findall(prose)


def anchors_of(path: Path) -> set[str]:
    """Returns the anchors of all headings."""
    return {slug(heading) for heading in _HEADING.findall(_BLOCK.sub("", path.read_text()))}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
