"""Reads the usage reports of Anthropic's Messages protocol. In these reports, `input_tokens` does not
include the tokens that were read from the cache or written to the cache.

A stream contains two reports. The report in `message_start` has the input tokens, the cache writes by
lifetime, and a preliminary number of output tokens, which is ignored. The report in `message_delta`
has the final numbers, but not the cache writes by lifetime.

The list `iterations` contains the usage of each iteration of the answer. The numbers outside this list
include the tokens of most iterations, but not the tokens of a compaction or an advisor. The reader adds
these tokens.

A fast answer (`"speed": "fast"`) has its own prices. The gateway treats this speed as the service
tier `speed-fast`.
"""

from typing import Any

from tollkeeper.backends.usage_reports import Counts, known_details, usage_report
from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import (
    ReportedUsage,
    all_writes,
    read_count,
    read_service_tier,
)

# The types of iterations whose tokens are not included in the numbers outside `iterations`.
_NOT_INCLUDED = ("compaction", "advisor_message")
_FAST = "fast"
# The tier is not named "fast", because other providers use this word with another meaning.
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
# The reported numbers of input tokens. None means that a number is unknown.
_Input = dict[str, Any]


class UsageReader:
    """Reads the usage reports of one answer, in their order."""

    def __init__(self) -> None:
        # The latest value of each number so far, without the iterations in `_NOT_INCLUDED`.
        self._input: _Input = {}

    def read(self, reported: Any, *, is_final: bool) -> UsageReport:
        return usage_report(reported, lambda usage: self._read(usage, is_final))

    def _read(self, reported: FreeObject, is_final: bool) -> ReportedUsage:
        counts = _input(reported)
        completion = read_count(reported.get("output_tokens")) if is_final else None
        self._input |= {name: count for name, count in counts.items() if count is not None}
        iterations = _iterations_not_included(reported)
        if iterations:
            # The sums also need the numbers that only an earlier report contains.
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
