"""Reads Messages usage reports, whose `input_tokens` include neither cache reads nor writes.

A stream has two. `message_start` has the input tokens, the cache writes by lifetime, and a
preliminary output count, which is ignored. `message_delta` has the final numbers, without the
lifetimes. The numbers outside of the list `iterations` lack the tokens of a compaction or an
advisor, so the reader adds them. A fast answer (`"speed": "fast"`) has its own prices, so it's the
service tier `speed-fast`.
"""

from typing import Any

from tollkeeper.core.inference import UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import ReportedUsage, all_writes, read_count, read_service_tier
from tollkeeper.providers.usage_reports import Counts, known_details, usage_report

# Iterations whose tokens aren't in the numbers outside `iterations`.
_NOT_INCLUDED = ("compaction", "advisor_message")
_FAST = "fast"
# Not "fast", which means something else at other providers.
_FAST_TIER = "speed-fast"


_INPUT = Counts(
    prompt_tokens="input_tokens",
    cached_tokens="cache_read_input_tokens",
    cache_write_tokens="cache_creation_input_tokens",
    cache_write_5m_tokens="cache_creation.ephemeral_5m_input_tokens",
    cache_write_1h_tokens="cache_creation.ephemeral_1h_input_tokens",
)
_OTHER = Counts(
    reasoning_tokens="output_tokens_details.thinking_tokens",
    web_searches="server_tool_use.web_search_requests",
)
# None means unknown.
_Input = dict[str, Any]


class UsageReader:
    def __init__(self) -> None:
        # The latest values, without the iterations in `_NOT_INCLUDED`.
        self._input: _Input = {}

    def read(self, reported: Any, *, is_final: bool) -> UsageReport:
        return usage_report(reported, lambda usage: self._read(usage, is_final))

    def _read(self, reported: FreeObject, is_final: bool) -> ReportedUsage:
        counts = _input(reported)
        completion = read_count(reported.get("output_tokens")) if is_final else None
        self._input |= {name: count for name, count in counts.items() if count is not None}
        iterations = _iterations_not_included(reported)
        if iterations:
            # The sums also need numbers that only an earlier report has.
            counts |= self._input
        for iteration in iterations:
            more = _input(iteration)
            counts = {name: _sum(count, more[name]) for name, count in counts.items()}
            if is_final:
                completion = _sum(completion, read_count(iteration.get("output_tokens")))
        other = _OTHER.read(reported)
        return ReportedUsage(
            **counts,
            **other,
            completion_tokens=completion,
            cache_adds_to_prompt=True,
            reports_prompt_before_output=True,
            service_tier=_FAST_TIER
            if reported.get("speed") == _FAST
            else read_service_tier(reported),
            prompt_details=known_details(cached_tokens=counts["cached_tokens"]),
            completion_details=known_details(reasoning_tokens=other["reasoning_tokens"]),
            written=reported,
        )


def _input(reported: FreeObject) -> _Input:
    counts = _INPUT.read(reported)
    short, long = counts["cache_write_5m_tokens"], counts["cache_write_1h_tokens"]
    return {**counts, "cache_write_tokens": all_writes(counts["cache_write_tokens"], short, long)}


def _iterations_not_included(reported: FreeObject) -> list[FreeObject]:
    iterations = reported.get("iterations")
    if not isinstance(iterations, list):
        return []
    return [
        part for part in iterations if isinstance(part, dict) and part.get("type") in _NOT_INCLUDED
    ]


def _sum(count: int | None, more: int | None) -> int | None:
    return count if more is None else (count or 0) + more
