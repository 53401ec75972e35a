"""Reads the usage reports of Responses servers. In these reports, `input_tokens` includes the cached
tokens, and `output_tokens` includes the reasoning tokens.

The reports of xAI, OpenRouter and Perplexity contain the number of web searches. OpenAI's report does
not; the gateway counts the search items in the output instead.
"""

from typing import Any

from tollkeeper.backends.answer_json import usage_report
from tollkeeper.backends.reported_cost import stated_cost, ticks_in_picousd
from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import (
    ReportedUsage,
    cached_audio_tokens,
    first_count,
    read_count,
    read_service_tier,
)

# The fields for cached and for written tokens: first OpenAI's name, then Perplexity's.
_CACHED = ("cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens")
# Perplexity's names for its web search tool.
_SEARCH_TOOLS = ("web_search", "search_web")


def read_responses_usage(
    reported: Any, *, searches_in_output: int = 0, service_tier: str | None = None
) -> UsageReport:
    """Reads a usage report. `service_tier` is the tier that the answer names outside of its report.
    `searches_in_output` is used if the report does not count web searches."""
    return usage_report(
        reported, lambda usage: _read(usage, searches_in_output, service_tier), service_tier
    )


def _read(reported: FreeObject, searches_in_output: int, service_tier: str | None) -> ReportedUsage:
    input_details = _details(reported, "input_tokens_details")
    output_details = _details(reported, "output_tokens_details")
    cost = ticks_in_picousd(reported.get("cost_in_usd_ticks"))
    searches = _web_searches(reported)
    return ReportedUsage(
        prompt_tokens=read_count(reported.get("input_tokens")),
        completion_tokens=read_count(reported.get("output_tokens")),
        total_tokens=read_count(reported.get("total_tokens")),
        cached_tokens=first_count(input_details or {}, _CACHED),
        cache_write_tokens=first_count(input_details or {}, _WRITTEN),
        reasoning_tokens=read_count((output_details or {}).get("reasoning_tokens")),
        web_searches=searches_in_output if searches is None else searches,
        input_audio_tokens=read_count((input_details or {}).get("audio_tokens")),
        cached_audio_tokens=cached_audio_tokens(input_details),
        output_audio_tokens=read_count((output_details or {}).get("audio_tokens")),
        service_tier=service_tier or read_service_tier(reported),
        cost_picousd=stated_cost(reported) if cost is None else cost,
        prompt_details=input_details,
        completion_details=output_details,
        written=reported,
    )


def _web_searches(reported: FreeObject) -> int | None:
    """Returns the number of web searches in the report; None if the report has no such number. Web
    search is the only server-side tool that the gateway requests, so the number of uses of server-side
    tools is the number of searches."""
    for name, count_field in (
        ("server_side_tool_usage_details", "web_search_calls"),
        ("server_tool_use_details", "web_search_requests"),
    ):
        count = read_count((_details(reported, name) or {}).get(count_field))
        if count is not None:
            return count
    tools = _details(reported, "tool_calls_details")
    if tools is not None:
        return sum(_invocations(tools.get(name)) for name in _SEARCH_TOOLS)
    return read_count(reported.get("num_server_side_tools_used"))


def _invocations(used: object) -> int:
    """Returns the number of uses of a tool. `used` is the number, or an object that contains it."""
    count = used.get("invocation") if isinstance(used, dict) else used
    return read_count(count) or 0


def _details(reported: FreeObject, name: str) -> FreeObject | None:
    details = reported.get(name)
    return details if isinstance(details, dict) else None
