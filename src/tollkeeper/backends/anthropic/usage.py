"""Reads usage from Messages servers: cache reads and writes are not included in the input's count.

A stream reports twice. `message_start` has the input, the split of cache writes by lifetime, and a
meaningless first count of the output. `message_delta` has the final counts, but no split.

`iterations` lists the parts of one answer. The usage of a compaction or an advisor is in none of
the other counts, so it is added; every other iteration is included in them.

A fast answer (`speed`) has its own prices: its speed counts as a service tier, `speed-fast`.
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

_NOT_INCLUDED = ("compaction", "advisor_message")
_FAST = "fast"
# Not the word itself, because other providers use "fast" for something else.
_FAST_TIER = "speed-fast"


class _Input(NamedTuple):
    """Holds the reported counts of input."""

    prompt: int | None = None
    cached: int | None = None
    written: int | None = None
    written_5m: int | None = None
    written_1h: int | None = None

    def plus(self, later: "_Input") -> "_Input":
        """Adds the counts; a count that neither has stays unknown."""
        return _Input(*(_sum(count, more) for count, more in zip(self, later, strict=True)))

    def updated(self, later: "_Input") -> "_Input":
        """Returns the later counts; a report may lack counts of the previous one."""
        return _Input(*(old if new is None else new for old, new in zip(self, later, strict=True)))


class UsageReader:
    """Reads the reports of one answer, in their order."""

    def __init__(self) -> None:
        # The counts without iterations.
        self._input = _Input()

    def read(self, reported: Any, *, is_final: bool) -> UsageReport:
        return usage_report(reported, lambda found: self._read(found, is_final))

    def _read(self, reported: FreeObject, is_final: bool) -> ReportedUsage:
        counts = _input(reported)
        completion = read_count(reported.get("output_tokens")) if is_final else None
        self._input = self._input.updated(counts)
        apart = _iterations_not_included(reported)
        if apart:
            counts = self._input
        for iteration in apart:
            counts = counts.plus(_input(iteration))
            if is_final:
                completion = _sum(completion, read_count(iteration.get("output_tokens")))
        reasoning = read_count(_details(reported, "output_tokens_details").get("thinking_tokens"))
        searches = read_count(_details(reported, "server_tool_use").get("web_search_requests"))
        return ReportedUsage(
            prompt_tokens=counts.prompt,
            completion_tokens=completion,
            cached_tokens=counts.cached,
            cache_write_tokens=counts.written,
            cache_write_5m_tokens=counts.written_5m,
            cache_write_1h_tokens=counts.written_1h,
            cache_is_beside_prompt=True,
            counts_prompt_first=True,
            reasoning_tokens=reasoning,
            web_searches=searches,
            service_tier=_FAST_TIER
            if reported.get("speed") == _FAST
            else read_service_tier(reported),
            # With the names that clients know.
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
        written=all_writes(written, short, long),
        written_5m=short,
        written_1h=long,
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
    found = reported.get(name)
    return found if isinstance(found, dict) else {}
