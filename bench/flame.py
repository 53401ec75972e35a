"""Draws a flame graph. The width of a box is the share of the samples whose stack contains the frame."""

import re
from collections import Counter
from dataclasses import dataclass, field
from html import escape

_WIDTH, _ROW = 1200, 17
# The width of a letter, in pixels.
_LETTER = 6.2
# Boxes below this width in pixels are not drawn, because they cannot be seen.
_NARROWEST = 0.5
_COLOURS = {
    "hosting": "#7aa6c2",
    "api": "#8fbf8f",
    "services": "#e0b354",
    "storage": "#c98fb0",
    "backends": "#d98b6a",
    "domain": "#b5b5d8",
}
_OTHER = "#d5d5d5"
# The beginning of a file's path, which depends on the machine. The rest of the path does not.
_PLACE = re.compile(r"\((?:/[^)]*?)?/(?:src|site-packages|python\d\.\d+)/(?!site-packages)")


@dataclass
class _Box:
    count: int = 0
    children: dict[str, "_Box"] = field(default_factory=dict)


def flame_graph(samples: Counter[str], title: str) -> str:
    """Returns an SVG picture. `samples` counts stacks in the form `frame;frame;frame`, outermost first."""
    root = _Box()
    for stack, count in samples.items():
        root.count += count
        box = root
        for frame in _PLACE.sub("(", stack).split(";"):
            box = box.children.setdefault(frame, _Box())
            box.count += count
    drawn: list[str] = []
    depth = _draw(root, 0.0, 0, _WIDTH / max(root.count, 1), drawn)
    height = (depth + 3) * _ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="{_ROW}" font-size="12">{escape(title)}</text>'
    )
    return "\n".join([head, *drawn, "</svg>\n"])


def _draw(box: _Box, left: float, depth: int, scale: float, drawn: list[str]) -> int:
    """Draws the children of a box below it. Returns the number of rows down to the lowest box."""
    lowest = depth
    for name, child in sorted(box.children.items()):
        width = child.count * scale
        if width >= _NARROWEST:
            drawn.append(_rectangle(name, left, depth, width, child.count))
            lowest = max(lowest, _draw(child, left, depth + 1, scale, drawn))
        left += width
    return lowest


def _rectangle(name: str, left: float, depth: int, width: float, count: int) -> str:
    function, _, file = name.partition(" (")
    room = file.partition("tollkeeper/")[2].partition("/")[0]
    top = (depth + 2) * _ROW
    shown = function[: int(width / _LETTER)] if width > 3 * _LETTER else ""
    return (
        f'<g><title>{escape(name)}: {count}</title><rect x="{left:.1f}" y="{top}" '
        f'width="{width:.1f}" height="{_ROW - 1}" fill="{_COLOURS.get(room, _OTHER)}" rx="1"/>'
        f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(shown)}</text></g>'
    )
