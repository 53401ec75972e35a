"""Reads Responses usage reports, whose `input_tokens` include cached tokens and `output_tokens`
reasoning. xAI, OpenRouter and Perplexity report web searches. OpenAI doesn't, so the search items
in the output count."""

from typing import Any

from tollkeeper.core.inference import UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import ReportedUsage, read_count, read_service_tier
from tollkeeper.providers.usage_reports import (
    Counts,
    details,
    stated_cost,
    ticks_in_picousd,
    usage_report,
)

_IN, _OUT = "input_tokens_details", "output_tokens_details"
# OpenAI's names first, then Perplexity's.
_COUNTS = Counts(
    prompt_tokens="input_tokens",
    completion_tokens="output_tokens",
    total_tokens="total_tokens",
    cached_tokens=f"{_IN}.cached_tokens {_IN}.cache_read_input_tokens",
    cache_write_tokens=f"{_IN}.cache_write_tokens {_IN}.cache_creation_input_tokens",
    reasoning_tokens=f"{_OUT}.reasoning_tokens",
    input_audio_tokens=f"{_IN}.audio_tokens",
    cached_audio_tokens=f"{_IN}.cached_tokens_details.audio_tokens",
    output_audio_tokens=f"{_OUT}.audio_tokens",
)
# Web search is the only server-side tool that the gateway requests, so uses are searches.
_SEARCHES = Counts(
    by_tool="server_side_tool_usage_details.web_search_calls"
    " server_tool_use_details.web_search_requests",
    all="num_server_side_tools_used",
)
# At Perplexity.
_SEARCH_TOOLS = ("web_search", "search_web")


def read_responses_usage(
    reported: Any, *, searches_in_output: int = 0, service_tier: str | None = None
) -> UsageReport:
    """`service_tier` is the one named outside of the report. `searches_in_output` counts if the
    report has no searches."""
    return usage_report(
        reported, lambda usage: _read(usage, searches_in_output, service_tier), service_tier
    )


def _read(reported: FreeObject, searches_in_output: int, service_tier: str | None) -> ReportedUsage:
    cost = ticks_in_picousd(reported.get("cost_in_usd_ticks"))
    searches = _web_searches(reported)
    return ReportedUsage(
        **_COUNTS.read(reported),
        web_searches=searches_in_output if searches is None else searches,
        service_tier=service_tier or read_service_tier(reported),
        cost_picousd=stated_cost(reported) if cost is None else cost,
        prompt_details=details(reported, _IN) or None,
        completion_details=details(reported, _OUT) or None,
        written=reported,
    )


def _web_searches(reported: FreeObject) -> int | None:
    counts = _SEARCHES.read(reported)
    tools = reported.get("tool_calls_details")
    if counts["by_tool"] is None and isinstance(tools, dict):
        return sum(_invocations(tools.get(name)) for name in _SEARCH_TOOLS)
    searches: int | None = counts["all"] if counts["by_tool"] is None else counts["by_tool"]
    return searches


def _invocations(used: object) -> int:
    """A number, or an object that contains it."""
    count = used.get("invocation") if isinstance(used, dict) else used
    return read_count(count) or 0
