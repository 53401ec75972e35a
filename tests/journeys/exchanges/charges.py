"""Reads `charges.md`: the charge of every recorded exchange, and the prices on which it is based."""

from dataclasses import dataclass
from pathlib import Path

from tollkeeper.core.money import picousd_from_usd

_DOCUMENT = Path(__file__).parent / "charges.md"
_PRICE_HEADER = ("price", "in USD")
_CHARGE_HEADER = (
    *("exchange", "uncached", "cache read", "cache write", "cache write 1h", "output"),
    *("searches", "charge in USD", "counted by", "above a token bound", "above the hold"),
)
_PRICED_HEADER = (
    *("exchange", "uncached", "cache read", "cache write", "input audio", "output"),
    *("output image", "service tier", "charge in USD", "counted by", "above a token bound"),
    "above the hold",
)
_TIER_HEADER = ("price", "up to 100000 tokens", "above 100000 tokens")
_MULTIPLIER_HEADER = ("service tier", "multiplier")
BACKEND, US, RELEASED, UNSETTLED = "the backend", "us", "nobody: released", "nobody: unsettled"
_COUNTED_BY = (BACKEND, US, RELEASED, UNSETTLED)
_NO = "no"


@dataclass(frozen=True)
class Row:
    """One exchange. `uncached` to `searches` are the counts that are charged; `charge` is in picousd."""

    exchange: str
    uncached: int
    cache_read: int
    cache_write: int
    cache_write_1h: int
    output: int
    searches: int
    charge: int
    counted_by: str
    # Why the usage exceeds the limit of the prompt or of the output; empty if it does not.
    above_bound: str
    # Why the charge exceeds the hold; empty if it does not.
    above_hold: str

    @property
    def is_charged(self) -> bool:
        return self.counted_by in (BACKEND, US)

    @property
    def status(self) -> str:
        """Returns the reservation's final status."""
        return {RELEASED: "released", UNSETTLED: "unsettled"}.get(self.counted_by, "settled")

    @property
    def prompt(self) -> int:
        return self.uncached + self.cache_read + self.cache_write + self.cache_write_1h


@dataclass(frozen=True)
class PricedRow:
    """One exchange whose prices depend on the call. No token is in two of the counts."""

    exchange: str
    uncached: int
    cache_read: int
    cache_write: int
    input_audio: int
    output: int
    output_image: int
    # The service tier that the answer names; empty if it names none.
    service_tier: str
    charge: int
    counted_by: str
    above_bound: str
    above_hold: str

    @property
    def prompt(self) -> int:
        return self.uncached + self.cache_read + self.cache_write + self.input_audio

    @property
    def completion(self) -> int:
        return self.output + self.output_image


def read_tiers() -> tuple[dict[str, str], dict[str, str]]:
    """Returns the prices for prompts up to the tier's length, and the prices above it."""
    rows = _table(_TIER_HEADER)
    return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}


def read_multipliers() -> dict[str, str]:
    return {cells[0]: cells[1] for cells in _table(_MULTIPLIER_HEADER)}


def read_priced_rows() -> dict[str, PricedRow]:
    rows = {}
    for name, *counts, tier, charge, counted_by, above_bound, above_hold in _table(_PRICED_HEADER):
        assert counted_by in (BACKEND, US), name
        uncached, cache_read, cache_write, input_audio, output, output_image = map(int, counts)
        rows[name] = PricedRow(
            exchange=name,
            uncached=uncached,
            cache_read=cache_read,
            cache_write=cache_write,
            input_audio=input_audio,
            output=output,
            output_image=output_image,
            service_tier="" if tier == "none" else tier,
            charge=picousd_from_usd(charge, param=name),
            counted_by=counted_by,
            above_bound=_why(above_bound),
            above_hold=_why(above_hold),
        )
    return rows


def read_prices() -> dict[str, str]:
    return {cells[0]: cells[1] for cells in _table(_PRICE_HEADER)}


def read_rows() -> dict[str, Row]:
    rows = [_row(cells) for cells in _table(_CHARGE_HEADER)]
    assert len({row.exchange for row in rows}) == len(rows), "an exchange has two rows"
    return {row.exchange: row for row in rows}


def _row(cells: tuple[str, ...]) -> Row:
    name, *counts, charge, counted_by, above_bound, above_hold = cells
    assert counted_by in _COUNTED_BY, cells
    uncached, cache_read, cache_write, cache_write_1h, output, searches = map(int, counts)
    return Row(
        exchange=name,
        uncached=uncached,
        cache_read=cache_read,
        cache_write=cache_write,
        cache_write_1h=cache_write_1h,
        output=output,
        searches=searches,
        charge=picousd_from_usd(charge, param=name),
        counted_by=counted_by,
        above_bound=_why(above_bound),
        above_hold=_why(above_hold),
    )


def _why(cell: str) -> str:
    if cell == _NO:
        return ""
    answer, _, why = cell.partition(": ")
    assert answer == "yes", cell
    assert why, cell
    return why


def _table(header: tuple[str, ...]) -> list[tuple[str, ...]]:
    lines = _lines()
    start = lines.index(f"| {' | '.join(header)} |")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        assert len(cells) == len(header), line
        rows.append(cells)
    return rows


def _lines() -> list[str]:
    return _DOCUMENT.read_text().splitlines()
