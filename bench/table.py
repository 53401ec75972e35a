"""Defines the targets for figures, and compiles the table of one run's figures and targets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Met = Literal["yes", "no", "not measured", ""]
OURS = "tollkeeper"
TWO_WORKERS, OPTIMISED = "two_workers", "optimised"
TITLES = {
    OURS: "tollkeeper",
    TWO_WORKERS: "tollkeeper with two workers",
    OPTIMISED: "tollkeeper on an interpreter built with optimisation",
    "nginx": "nginx, which only passes bytes on",
    "envoy": "Envoy, which only passes bytes on",
    "sglang": "the SGLang gateway",
    "smg": "smg, the successor of the SGLang gateway",
    "tensorzero": "TensorZero",
    "portkey": "Portkey",
    "litellm": "LiteLLM",
}


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    measured: str
    target: str
    met: Met


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """The highest value that a figure should have, or the lowest if `least` is set."""

    figure: str
    name: str
    unit: str
    limit: float
    least: bool = False


@dataclass(frozen=True, slots=True)
class Ratio:
    """The highest value that tollkeeper's figure divided by a peer's figure should have."""

    figure: str
    name: str
    peer: str
    limit: float


_RATIOS = [
    Ratio("CPU per chat request", "cpu_us_per_request", "sglang", 1),
    Ratio("CPU per chat request", "cpu_us_per_request", "tensorzero", 1 / 2),
    Ratio("CPU per chat request", "cpu_us_per_request", "portkey", 1 / 8),
    Ratio("CPU per chat request", "cpu_us_per_request", "litellm", 1 / 80),
    Ratio("CPU per streamed piece", "cpu_us_per_piece", "sglang", 0.8),
    Ratio("CPU per streamed piece", "cpu_us_per_piece", "litellm", 1 / 40),
]
_VALUE_TARGETS = [
    ValueTarget("CPU of the database, of the gateway's own", "database_share", "", 0.75),
    ValueTarget(
        "CPU per chat request with two workers, of that with one", "two_workers_share", "", 1.15
    ),
    ValueTarget(
        "added to the first byte of a stream, p50", "stream_first_byte_added_ms_p50", "ms", 2
    ),
    ValueTarget(
        "added to the first byte of a stream, p99", "stream_first_byte_added_ms_p99", "ms", 10
    ),
    ValueTarget(
        "added to the first byte of a JSON answer, durable settlement included, p50",
        *("json_first_byte_added_ms_p50", "ms", 2),
    ),
    ValueTarget(
        "added to the first byte of a JSON answer, durable settlement included, p99",
        *("json_first_byte_added_ms_p99", "ms", 10),
    ),
    ValueTarget("resident memory of an idle worker", "idle_resident_mb", "MB", 120),
    ValueTarget("resident memory of each further open stream", "stream_resident_kib", "KiB", 64),
    ValueTarget(
        "a report after {report_settled:,.0f} settled requests, of one after 1,000",
        "report_ratio",
        "",
        1.2,
    ),
    ValueTarget(
        "throughput with a hot organization, of that over 100 organizations",
        *("hot_organization_share", "", 0.8),
        least=True,
    ),
    ValueTarget("start of the gateway, database already up", "start_s", "s", 2),
]
_PLAIN = [
    ("CPU per chat request", "cpu_us_per_request", "µs"),
    ("chat requests a second, 32 connections", "requests_per_s", ""),
    ("CPU per streamed piece", "cpu_us_per_piece", "µs"),
    ("context switches per chat request", "switches_per_request", ""),
    ("resident memory after chat requests", "loaded_resident_mb", "MB"),
]


def rows(figures: dict[str, float], missing: dict[str, str]) -> list[Row]:
    return [*_plain(figures, missing), *_ratios(figures, missing), *_values(figures)]


def _plain(figures: dict[str, float], missing: dict[str, str]) -> Iterator[Row]:
    """Yields the rows of figures without a target."""
    for figure, name, unit in _PLAIN:
        for gateway, title in TITLES.items():
            key = f"{gateway}.{name}"
            if key in figures:
                yield Row(f"{figure}: {title}", _shown(figures[key], unit), "", "")
            elif gateway in missing:
                yield Row(f"{figure}: {title}", missing[gateway], "", "not measured")
    database = _shown(figures["database_cpu_us_per_request"], "µs")
    yield Row("CPU per chat request: the database, apart from the gateway", database, "", "")
    written = _shown(figures["wal_bytes_per_request"], "bytes")
    yield Row("log of the database per chat request", written, "", "")


def _ratios(figures: dict[str, float], missing: dict[str, str]) -> Iterator[Row]:
    for ratio in _RATIOS:
        figure = f"{ratio.figure}, of {TITLES[ratio.peer]}'s"
        target = f"at most {_part(ratio.limit)}"
        theirs = figures.get(f"{ratio.peer}.{ratio.name}")
        if theirs is None:
            yield Row(figure, missing[ratio.peer], target, "not measured")
            continue
        measured = figures[f"{OURS}.{ratio.name}"] / theirs
        yield Row(figure, _part(measured), target, "yes" if measured <= ratio.limit else "no")


def _values(figures: dict[str, float]) -> Iterator[Row]:
    for target in _VALUE_TARGETS:
        measured = figures[target.name]
        met = measured >= target.limit if target.least else measured <= target.limit
        limit = f"at {'least' if target.least else 'most'} {_shown(target.limit, target.unit)}"
        figure = target.figure.format(**figures)
        yield Row(figure, _shown(measured, target.unit), limit, "yes" if met else "no")


def _part(value: float) -> str:
    """Formats a ratio. A ratio below one half is formatted as 1/n."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value >= 0.5 else f"1/{1 / value:.3g}"


def _shown(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{number} {unit}".rstrip()


def as_markdown(table: list[Row]) -> str:
    heads = ("figure", "measured", "target", "met")
    lines = [heads, *((row.figure, row.measured, row.target, row.met) for row in table)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    text = [
        _line([f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)])
        for line in lines
    ]
    text.insert(1, _line(["-" * width for width in widths]))
    return "\n".join(text)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
