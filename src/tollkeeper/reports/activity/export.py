"""Exports activity records as CSV or JSON lines."""

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.core.usage import Usage
from tollkeeper.core.views import ActivityEntry, Position, RareFilter
from tollkeeper.reports.traffic.rule import TimeRange, TrafficFilter
from tollkeeper.reports.traffic.service import PAGE_MAX, Traffic

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
    "param",
    "message",
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


async def export_pages(
    traffic: Traffic,
    traffic_filter: TrafficFilter,
    rare: RareFilter,
    time: TimeRange,
    form: ExportFormat,
) -> AsyncIterator[tuple[str, int]]:
    """Each page's text and number of records, newest first."""
    before: Position | None = None
    while True:
        page = await traffic.activity_page(
            traffic_filter, rare, time, before=before, limit=PAGE_MAX
        )
        # After reading, so an invalid time range raises before any output.
        heading = csv_lines([_CSV_COLUMNS]) if before is None and form is ExportFormat.CSV else ""
        records = [activity_view(entry) for entry in page.entries]
        yield heading + _text(records, form), len(records)
        before = page.older
        if before is None:
            return


def _text(records: Sequence[dict[str, Any]], form: ExportFormat) -> str:
    if form is ExportFormat.CSV:
        return csv_lines([_csv_row(record) for record in records])
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def _csv_row(record: dict[str, Any]) -> list[object]:
    flat = {**record, **(record["usage"] or {})}
    return [flat.get(column) for column in _CSV_COLUMNS]


def activity_view(entry: ActivityEntry) -> dict[str, Any]:
    return {
        "request_id": entry.request_id,
        "organization_id": entry.organization_id,
        "project_id": entry.project_id,
        "api_key_id": entry.key_id,
        "operation": entry.operation,
        "model": entry.model,
        "streamed": entry.streamed,
        "started_at": entry.started_at_ms // 1000,
        "duration_ms": entry.duration_ms,
        "first_piece_ms": entry.first_piece_ms,
        "status": entry.status,
        "error": entry.error_code,
        "param": entry.error_param,
        "message": entry.error_message,
        "finish": entry.finish,
        "usage": None if entry.usage is None else _usage_view(entry.usage),
        "reported_usage": entry.reported_usage,
        "reported_cost": _usd(entry.reported_cost_picousd),
        "estimated": entry.estimated,
        "hold": _usd(entry.hold_picousd),
        "cost": _usd(entry.cost_picousd),
        "settlement": entry.settlement,
        "unsettled_reason": entry.unsettled_reason,
        "backend": entry.backend,
        "replica": entry.replica,
        "verdicts": msgspec.to_builtins(entry.verdicts),
        "requests": entry.requests,
    }


def _usage_view(usage: Usage) -> dict[str, int | str]:
    view: dict[str, int | str] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "web_searches": usage.web_searches,
    }
    if usage.input_audio_tokens or usage.output_audio_tokens:
        view["input_audio_tokens"] = usage.input_audio_tokens
        view["output_audio_tokens"] = usage.output_audio_tokens
    if usage.service_tier is not None:
        view["service_tier"] = usage.service_tier
    return view


def _usd(amount: int | None) -> str | None:
    return None if amount is None else usd_from_picousd(amount)
