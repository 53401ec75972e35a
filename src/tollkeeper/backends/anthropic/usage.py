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

from typing import Any, NamedTuple

from tollkeeper.backends.answer_json import usage_report
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


class _Input(NamedTuple):
    """Contains the reported numbers of input tokens. None means that a number is unknown."""

    prompt: int | None = None
    # Tokens read from the cache.
    cached: int | None = None
    # Tokens written to the cache: all, and those with a lifetime of five minutes or one hour.
    cache_writes: int | None = None
    cache_writes_5m: int | None = None
    cache_writes_1h: int | None = None

    def plus(self, other: "_Input") -> "_Input":
        """Adds two sets of numbers. A number that is unknown in both stays unknown."""
        return _Input(*(_sum(count, more) for count, more in zip(self, other, strict=True)))

    def updated(self, later: "_Input") -> "_Input":
        """Returns the later numbers. Keeps the numbers of this report that the later report does not
        contain."""
        return _Input(*(old if new is None else new for old, new in zip(self, later, strict=True)))


class UsageReader:
    """Reads the usage reports of one answer, in their order."""

    def __init__(self) -> None:
        # The latest value of each number so far, without the iterations in `_NOT_INCLUDED`.
        self._input = _Input()

    def read(self, reported: Any, *, is_final: bool) -> UsageReport:
        return usage_report(reported, lambda usage: self._read(usage, is_final))

    def _read(self, reported: FreeObject, is_final: bool) -> ReportedUsage:
        counts = _input(reported)
        completion = read_count(reported.get("output_tokens")) if is_final else None
        self._input = self._input.updated(counts)
        iterations = _iterations_not_included(reported)
        if iterations:
            # The sums also need the numbers that only an earlier report contains.
            counts = self._input
        for iteration in iterations:
            counts = counts.plus(_input(iteration))
            if is_final:
                completion = _sum(completion, read_count(iteration.get("output_tokens")))
        reasoning = read_count(_details(reported, "output_tokens_details").get("thinking_tokens"))
        searches = read_count(_details(reported, "server_tool_use").get("web_search_requests"))
        return ReportedUsage(
            prompt_tokens=counts.prompt,
            completion_tokens=completion,
            cached_tokens=counts.cached,
            cache_write_tokens=counts.cache_writes,
            cache_write_5m_tokens=counts.cache_writes_5m,
            cache_write_1h_tokens=counts.cache_writes_1h,
            cache_adds_to_prompt=True,
            reports_prompt_before_output=True,
            reasoning_tokens=reasoning,
            web_searches=searches,
            service_tier=_FAST_TIER
            if reported.get("speed") == _FAST
            else read_service_tier(reported),
            # The details that clients see have the names of the chat protocol.
            prompt_details=None if counts.cached is None else {"cached_tokens": counts.cached},
            completion_details=None if reasoning is None else {"reasoning_tokens": reasoning},
            written=reported,
        )


def _input(reported: FreeObject) -> _Input:
    split = _details(reported, "cache_creation")
    short = read_count(split.get("ephemeral_5m_input_tokens"))
    long = read_count(split.get("ephemeral_1h_input_tokens"))
    written = read_count(reported.get("cache_creation_input_tokens"))
    return _Input(
        prompt=read_count(reported.get("input_tokens")),
        cached=read_count(reported.get("cache_read_input_tokens")),
        cache_writes=all_writes(written, short, long),
        cache_writes_5m=short,
        cache_writes_1h=long,
    )


def _iterations_not_included(reported: FreeObject) -> list[FreeObject]:
    iterations = reported.get("iterations")
    if not isinstance(iterations, list):
        return []
    return [
        part for part in iterations if isinstance(part, dict) and part.get("type") in _NOT_INCLUDED
    ]


def _sum(count: int | None, more: int | None) -> int | None:
    return count if more is None else (count or 0) + more


def _details(reported: FreeObject, name: str) -> FreeObject:
    details = reported.get(name)
    return details if isinstance(details, dict) else {}
