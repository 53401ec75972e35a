"""Usage as Messages servers report it: cache reads and writes are beside the input's count.

A stream reports twice. `message_start` has the input, the split of cache writes by lifetime, and a
first count of the output that means nothing. `message_delta` has the last word on all counts, but
no split. Cache writes that only the last word has are taken for the dearer lifetime.

`iterations` lists what one answer consisted of. What a compaction or an advisor used is in none of
the other counts, so it is added; every other iteration is inside of them.

A fast answer (`speed`) has prices of its own: its speed counts as a service tier, `speed-fast`.
"""

from typing import Any, NamedTuple

from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import AbsurdCount, ReportedUsage, read_count, read_service_tier

_APART = ("compaction", "advisor_message")
_FAST = "fast"
# Not the word itself: others call something else their fast tier.
_FAST_TIER = "speed-fast"


class _Input(NamedTuple):
    """The counts of input, as far as reports have told them."""

    prompt: int | None = None
    cached: int | None = None
    written: int | None = None
    written_1h: int | None = None


class UsageReader:
    """Reads the reports of one answer, in their order."""

    def __init__(self) -> None:
        # Cache writes by lifetime, as far as a report has split them.
        self._split: tuple[int, int] | None = None
        self._input = _Input()

    def read(self, reported: Any, *, is_final: bool) -> UsageReport:
        """A report that is no object says nothing. One with a count that can be none is absurd."""
        if not isinstance(reported, dict):
            return UsageReport(ReportedUsage())
        try:
            return UsageReport(self._read(reported, is_final))
        except AbsurdCount:
            return UsageReport(None, absurd=reported)

    def _read(self, reported: FreeObject, is_final: bool) -> ReportedUsage:
        written = read_count(reported.get("cache_creation_input_tokens"))
        short, long = self._written_by_lifetime(reported, written)
        prompt = read_count(reported.get("input_tokens"))
        completion = read_count(reported.get("output_tokens")) if is_final else None
        cached = read_count(reported.get("cache_read_input_tokens"))
        # The counts without iterations. A report may lack what the one before it has.
        self._input = _Input(
            *(
                earlier if count is None else count
                for earlier, count in zip(self._input, (prompt, cached, short, long), strict=True)
            )
        )
        apart = _iterations_apart(reported)
        if apart:
            prompt, cached, short, long = self._input
        for iteration in apart:
            prompt = _sum(prompt, iteration.get("input_tokens"))
            cached = _sum(cached, iteration.get("cache_read_input_tokens"))
            part_short, part_long = _lifetimes(
                iteration, read_count(iteration.get("cache_creation_input_tokens"))
            )
            short, long = _sum(short, part_short), _sum(long, part_long)
            if is_final:
                completion = _sum(completion, iteration.get("output_tokens"))
        reasoning = read_count(_details(reported, "output_tokens_details").get("thinking_tokens"))
        searches = read_count(_details(reported, "server_tool_use").get("web_search_requests"))
        return ReportedUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            cache_write_tokens=short,
            cache_write_1h_tokens=long,
            cache_is_beside_prompt=True,
            counts_prompt_first=True,
            reasoning_tokens=reasoning,
            web_searches=searches,
            service_tier=_FAST_TIER
            if reported.get("speed") == _FAST
            else read_service_tier(reported),
            # By the names that callers know.
            prompt_details=None if cached is None else {"cached_tokens": cached},
            completion_details=None if reasoning is None else {"reasoning_tokens": reasoning},
            written=reported,
        )

    def _written_by_lifetime(
        self, reported: FreeObject, written: int | None
    ) -> tuple[int | None, int | None]:
        if isinstance(reported.get("cache_creation"), dict):
            short, long = _lifetimes(reported, written)
            self._split = (short or 0, long or 0)
            return self._split
        if written is None:
            return None, None
        if self._split is None:
            return written, 0
        short, long = self._split
        if written < short + long:
            long = min(long, written)
            short = written - long
        else:
            long = written - short
        return short, long


def _lifetimes(reported: FreeObject, written: int | None) -> tuple[int | None, int | None]:
    """Cache writes for five minutes and for an hour. What the split does not cover is taken for the
    dearer one."""
    split = reported.get("cache_creation")
    if not isinstance(split, dict):
        return written, 0 if written is not None else None
    short = read_count(split.get("ephemeral_5m_input_tokens")) or 0
    long = read_count(split.get("ephemeral_1h_input_tokens")) or 0
    return short, max(long, (written or 0) - short)


def _iterations_apart(reported: FreeObject) -> list[FreeObject]:
    iterations = reported.get("iterations")
    if not isinstance(iterations, list):
        return []
    return [part for part in iterations if isinstance(part, dict) and part.get("type") in _APART]


def _sum(count: int | None, more: object) -> int | None:
    added = read_count(more)
    return count if added is None else (count or 0) + added


def _details(reported: FreeObject, name: str) -> FreeObject:
    found = reported.get(name)
    return found if isinstance(found, dict) else {}
