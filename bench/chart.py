"""`python -m bench.chart`: draws the CPU figures of the last `make bench` for the documentation."""

import json
import math
from pathlib import Path

_HERE = Path(__file__).parent
_IMAGE = _HERE.parent / "docs" / "images" / "gateways.svg"
_BARS = {
    "tollkeeper": "tollkeeper",
    "sglang": "SGLang gateway",
    "smg": "smg",
    "tensorzero": "TensorZero",
    "portkey": "Portkey",
    "litellm": "LiteLLM",
    "envoy": "Envoy",
}
_PANELS = {
    "cpu_us_per_request": "CPU per chat request, µs (logarithmic scale)",
    "cpu_us_per_piece": "CPU per streamed piece, µs (logarithmic scale)",
}
_LEFT, _WIDTH, _BAR = 130, 560, 28


def main() -> None:
    figures = json.loads((_HERE / "result.json").read_text())["figures"]
    _IMAGE.write_text(gateways_svg(figures))


def gateways_svg(figures: dict[str, float]) -> str:
    parts: list[str] = []
    top = 28
    for figure, title in _PANELS.items():
        bars = {
            shown: figures[f"{name}.{figure}"]
            for name, shown in _BARS.items()
            if f"{name}.{figure}" in figures
        }
        parts += _panel(top, title, bars)
        top += 76 + _BAR * len(bars)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{top}" viewBox="0 0 720 {top}"'
        ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _panel(top: int, title: str, bars: dict[str, float]) -> list[str]:
    first = math.floor(math.log10(min(bars.values())))
    last = math.ceil(math.log10(max(bars.values())))
    bottom = top + 12 + _BAR * len(bars)
    parts = [f'<text x="{_LEFT}" y="{top}" font-size="14">{title}</text>']
    for power in range(first, last + 1):
        x = _LEFT + _WIDTH * (power - first) / (last - first)
        parts.append(
            f'<line x1="{x:.0f}" y1="{top + 12}" x2="{x:.0f}" y2="{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{10**power:,}</text>'
        )
    for row, (name, value) in enumerate(bars.items()):
        y = top + 16 + _BAR * row
        width = _WIDTH * (math.log10(value) - first) / (last - first)
        colour = "#c2703d" if row == 0 else "#3b6ea5"
        # The number of a long bar is drawn inside the bar.
        is_long = width > _WIDTH - 60
        x, look = (width - 6, 'text-anchor="end" fill="white"') if is_long else (width + 6, "")
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{name}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="20" fill="{colour}"/>'
            f'<text x="{_LEFT + x:.1f}" y="{y + 15}" {look}>{shown}</text>'
        )
    return parts


if __name__ == "__main__":
    main()
