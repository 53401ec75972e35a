"""Draws curves of ratios over sizes on a logarithmic axis, with a line for the highest allowed ratio."""

from html import escape
from math import log10

_WIDTH, _HEIGHT = 820, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 300, 46, 56
_COLOURS = ("#3b6ea5", "#c2703d", "#5b8c5a", "#8f5b96", "#a08a2e", "#5c5c5c")
# The ratio axis ends at this value, or `_STEP` above the highest ratio.
_MOST_AT_LEAST = 1.3
_STEP = 0.1


def draw(
    title: str, caption: str, curves: dict[str, list[tuple[int, float]]], *, target: float
) -> str:
    """Returns an SVG picture. `curves` has the points of each named curve as size and ratio."""
    sizes = [size for points in curves.values() for size, _ in points]
    ratios = [ratio for points in curves.values() for _, ratio in points]
    frame = _Frame(min(sizes), max(sizes), max(_MOST_AT_LEAST, max(ratios) + _STEP))
    drawn = [_head(title, caption), *_axes(frame), _target(frame, target)]
    for number, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn += _curve(frame, points, colour)
        top = _TOP + 20 + 22 * number
        left = _WIDTH - _RIGHT + 24
        drawn.append(
            f'<line x1="{left}" y1="{top}" x2="{left + 20}" y2="{top}" stroke="{colour}" '
            f'stroke-width="2"/><text x="{left + 26}" y="{top + 4}">{escape(name)}</text>'
        )
    return "\n".join([*drawn, "</svg>\n"])


class _Frame:
    """Converts sizes and ratios to coordinates of the picture. The ratio axis begins at 0."""

    def __init__(self, least: int, most: int, highest: float) -> None:
        self.least, self.most, self.highest = least, most, highest

    def x(self, size: float) -> float:
        share = (log10(size) - log10(self.least)) / (log10(self.most) - log10(self.least))
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def y(self, ratio: float) -> float:
        return _HEIGHT - _BOTTOM - ratio / self.highest * (_HEIGHT - _BOTTOM - _TOP)


def _head(title: str, caption: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}" font-size="10" fill="#666">{escape(caption)}</text>'
    )


def _axes(frame: _Frame) -> list[str]:
    drawn = []
    end = _WIDTH - _RIGHT
    for power in range(round(log10(frame.least)), round(log10(frame.most)) + 1):
        x = frame.x(10**power)
        drawn.append(
            f'<line x1="{x:.1f}" y1="{frame.y(0):.1f}" x2="{x:.1f}" y2="{_TOP}" stroke="#eee"/>'
            f'<text x="{x:.1f}" y="{frame.y(0) + 18:.1f}" text-anchor="middle">{10**power:,}</text>'
        )
    for number in range(int(frame.highest / 0.5) + 1):
        y = frame.y(number * 0.5)
        drawn.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{end}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * 0.5:.1f}</text>'
        )
    return drawn


def _target(frame: _Frame, target: float) -> str:
    y = frame.y(target)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#c00" '
        f'stroke-dasharray="6 4"/>'
        f'<text x="{_WIDTH - _RIGHT}" y="{y - 5:.1f}" text-anchor="end" fill="#c00">'
        f"target {target:g}</text>"
    )


def _curve(frame: _Frame, points: list[tuple[int, float]], colour: str) -> list[str]:
    places = [(frame.x(size), frame.y(ratio), size, ratio) for size, ratio in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    return [
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">'
            f"<title>{size:,}: {ratio:.2f}</title></circle>"
            for x, y, size, ratio in places
        ),
    ]
