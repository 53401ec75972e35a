"""Reads usage from Responses servers: cached tokens and reasoning are included in their counts.

xAI, OpenRouter and Perplexity count web searches in their reports. OpenAI's report does not have
them; they are items of the output.
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

# OpenAI's names, and Perplexity's.
_CACHED = ("cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens")
# Perplexity's names of its search.
_SEARCH_TOOLS = ("web_search", "search_web")


def read_responses_usage(
    reported: Any, *, searches_in_output: int = 0, service_tier: str | None = None
) -> UsageReport:
    """Reads a report. `service_tier` is the tier that the answer names outside its report."""
    return usage_report(
        reported, lambda found: _read(found, searches_in_output, service_tier), service_tier
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
    """Returns the backend's own count. A web search is the only server-side tool that a call asks
    for, so a count of all such tools is a count of searches."""
    for name, counted in (
        ("server_side_tool_usage_details", "web_search_calls"),
        ("server_tool_use_details", "web_search_requests"),
    ):
        count = read_count((_details(reported, name) or {}).get(counted))
        if count is not None:
            return count
    tools = _details(reported, "tool_calls_details")
    if tools is not None:
        return sum(_invocations(tools.get(name)) for name in _SEARCH_TOOLS)
    return read_count(reported.get("num_server_side_tools_used"))


def _invocations(used: object) -> int:
    """Returns how often a tool was used, from a number or an object with the number."""
    count = used.get("invocation") if isinstance(used, dict) else used
    return read_count(count) or 0


def _details(reported: FreeObject, name: str) -> FreeObject | None:
    found = reported.get(name)
    return found if isinstance(found, dict) else None
