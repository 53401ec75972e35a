"""`tollkeeper activity export`: the records of a time, page by page, for other programs."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from tollkeeper.cli.csv_text import csv_lines
from tollkeeper.domain.traffic import TimeRange, TrafficFilter
from tollkeeper.domain.views import ActivityEntry, Position, RareFilter
from tollkeeper.services.calls.traffic import PAGE_MAX
from tollkeeper.services.use_cases import Services

_CSV_COLUMNS = (
    "request_id",
    "started_at",
    "organization_id",
    "project_id",
    "api_key_id",
    "operation",
    "model",
    "streamed",
    "status",
    "error",
    "duration_ms",
    "first_piece_ms",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "hold",
    "cost",
    "settlement",
    "backend",
    "replica",
    "requests",
)


class ExportFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"


View = Callable[[ActivityEntry], dict[str, Any]]


async def export(
    services: Services, wanted: TrafficFilter, time: TimeRange, form: ExportFormat, view: View
) -> int:
    """Writes the records to standard output, the newest first, and returns how many there were."""
    written = 0
    before: Position | None = None
    while True:
        page = await services.traffic.activity_page(
            wanted, RareFilter(), time, before=before, limit=PAGE_MAX
        )
        # Only now: a time that is refused prints nothing.
        if before is None and form is ExportFormat.CSV:
            sys.stdout.write(csv_lines([_CSV_COLUMNS]))
        _write([view(entry) for entry in page.entries], form)
        written += len(page.entries)
        before = page.older
        if before is None:
            return written


def _write(records: Sequence[dict[str, Any]], form: ExportFormat) -> None:
    if form is ExportFormat.CSV:
        text = csv_lines([_csv_row(record) for record in records])
    else:
        text = "".join(msgspec.json.encode(record).decode() + "\n" for record in records)
    sys.stdout.write(text)
    sys.stdout.flush()


def _csv_row(record: dict[str, Any]) -> list[object]:
    flat = {**record, **(record["usage"] or {})}
    return [flat.get(column) for column in _CSV_COLUMNS]
