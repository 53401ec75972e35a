"""A call's usage, merged and normalised from backends' reports.

Each wire converts a report to a `ReportedUsage`, whose fields may be missing. `merged` keeps the last value
of each. A report may be ambiguous: `possible_usages` has a `Usage` for each meaning, without counting a token
twice, and `metering.read_usage` chooses.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from tollkeeper.core.prompt import FreeObject

# More is impossible.
COUNT_MAX = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """`prompt_tokens` includes cache reads and writes, `completion_tokens` reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # For five minutes, and for an hour.
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    # Read from a cache and written to one. Both counts have them, and both are charged.
    rewritten_tokens: int = 0
    web_searches: int = 0
    # In the input that isn't cached, and in the output.
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    # In the output.
    output_image_tokens: int = 0
    # That the answer names.
    service_tier: str | None = None
    # As the backend wrote them, for clients that read other counts.
    prompt_details: dict[str, Any] | None = None
    completion_details: dict[str, Any] | None = None
    # Our count replaced a missing or wrong one, or the answer broke off after a running total.
    estimated: bool = False
    # If this is the sum of several answers.
    parts: "tuple[Usage, ...]" = ()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        """Neither read from a cache nor written to one."""
        written = self.cache_write_tokens + self.cache_write_1h_tokens
        return self.prompt_tokens - self.cached_tokens - written + self.rewritten_tokens


class ReportedUsage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Independent of the wire. None: the report lacks it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    # All, for five minutes, and for an hour.
    cache_write_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    # Cache reads and writes come on top of `prompt_tokens`.
    cache_adds_to_prompt: bool | None = None
    reasoning_tokens: int | None = None
    web_searches: int | None = None
    # The output's count comes at the end.
    reports_prompt_before_output: bool | None = None
    # In the prompt, in its cached part, and in the completion.
    input_audio_tokens: int | None = None
    cached_audio_tokens: int | None = None
    output_audio_tokens: int | None = None
    # In the completion.
    output_image_tokens: int | None = None
    service_tier: str | None = None
    # If the answer then breaks off, the backend may bill more.
    is_running_total: bool = False
    # If the report is about several answers. All other counts are then None.
    parts: tuple[Usage, ...] | None = None
    # Stated by the backend. Not charged, but stored, and it helps to choose between meanings.
    cost_picousd: int | None = None
    prompt_details: FreeObject | None = None
    completion_details: FreeObject | None = None
    # Unchanged.
    written: FreeObject | None = None


NO_REPORT = ReportedUsage()
# All but prompt, completion and total. Most reports have none.
further_counts = attrgetter(
    *("cached_tokens", "cache_write_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens"),
    *("reasoning_tokens", "web_searches", "input_audio_tokens", "output_audio_tokens"),
    *("output_image_tokens", "parts"),
)


def merged(earlier: ReportedUsage, later: ReportedUsage) -> ReportedUsage:
    """The earlier total isn't used, being the sum of earlier counts, unless the later report only names a
    service tier."""
    if earlier is NO_REPORT:
        return later
    tier = later.service_tier
    if tier is not None and later == ReportedUsage(service_tier=tier):
        return msgspec.structs.replace(earlier, service_tier=tier)
    values = {
        name: getattr(earlier, name) if value is None and name != "total_tokens" else value
        for name, value in msgspec.structs.asdict(later).items()
    }
    return ReportedUsage(**values)


def normalised(report: ReportedUsage) -> Usage | None:
    """The likeliest meaning; None without the prompt's or the completion's count."""
    possible = possible_usages(report)
    return possible[0] if possible else None


def possible_usages(report: ReportedUsage, *, unnamed_is_1h: bool = False) -> list[Usage]:
    """The likeliest first; empty without the prompt's or the completion's count. `unnamed_is_1h`: cache
    writes without a lifetime are for an hour, not five minutes.

    A report doesn't say whether cache reads and writes are different tokens of the prompt, the same ones
    (read and written again), or come on top of its count.
    """
    if report.parts is not None:
        return [added(report.parts)]
    prompt, completion = report.prompt_tokens, report.completion_tokens
    if prompt is None or completion is None:
        return []
    read = report.cached_tokens or 0
    writes = _writes_by_lifetime(report, unnamed_is_1h)
    written = writes[0] + writes[1]
    # The whole prompt, and what was both read and written. The prompt's count either leaves out the cache, or
    # has tokens that were read and written again.
    excluding_cache = (prompt + read + written, 0)
    read_and_rewritten = (prompt, min(read, written))
    if report.cache_adds_to_prompt or max(read, written) > prompt:
        meanings = [excluding_cache]
    elif read + written <= prompt:
        meanings = [(prompt, 0), read_and_rewritten] if read and written else [(prompt, 0)]
    elif report.total_tokens in _totals(prompt, completion, report.reasoning_tokens):
        meanings = [read_and_rewritten, excluding_cache]
    else:
        meanings = [excluding_cache, read_and_rewritten]
    return [_read_as(report, prompt, completion, writes, *meaning) for meaning in meanings]


def all_writes(written: int | None, short: int | None, long: int | None) -> int | None:
    """A report may have the total, the counts by lifetime, or all three."""
    if short is None and long is None:
        return written
    return max(written or 0, (short or 0) + (long or 0))


def _writes_by_lifetime(report: ReportedUsage, unnamed_is_1h: bool) -> tuple[int, int]:
    """Five minutes, and an hour."""
    short, long = report.cache_write_5m_tokens or 0, report.cache_write_1h_tokens or 0
    written = report.cache_write_tokens
    if written is None:
        return short, long
    if written < short + long:
        # A later report has a smaller total than an earlier one's lifetimes. As many as possible count for an
        # hour, which costs more.
        return written - min(long, written), min(long, written)
    return (short, written - short) if unnamed_is_1h else (written - long, long)


def _totals(prompt: int, completion: int, reasoning: int | None) -> tuple[int, int]:
    """Of a report whose prompt and completion include everything, except perhaps reasoning."""
    return prompt + completion, prompt + completion + (reasoning or 0)


def _read_as(
    report: ReportedUsage,
    reported_prompt: int,
    completion: int,
    writes: tuple[int, int],
    prompt: int,
    rewritten: int,
) -> Usage:
    """`prompt` is the whole prompt, `rewritten` what was both read from a cache and written to one."""
    total, reasoning = report.total_tokens, report.reasoning_tokens or 0
    if total is not None and total != prompt + completion:
        if total == reported_prompt + completion + reasoning:
            # The completion lacks reasoning, and the total lacks cache tokens on top of the prompt.
            completion += reasoning
        elif total > prompt + completion:
            # The total has other tokens, usually reasoning, which is output.
            completion = total - prompt
    output_audio = min(report.output_audio_tokens or 0, completion)
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=report.cached_tokens or 0,
        reasoning_tokens=min(reasoning, completion),
        cache_write_tokens=writes[0],
        cache_write_1h_tokens=writes[1],
        rewritten_tokens=rewritten,
        web_searches=report.web_searches or 0,
        output_audio_tokens=output_audio,
        output_image_tokens=min(report.output_image_tokens or 0, completion - output_audio),
        service_tier=report.service_tier,
        prompt_details=report.prompt_details,
        completion_details=report.completion_details,
    )
    audio = max(0, (report.input_audio_tokens or 0) - (report.cached_audio_tokens or 0))
    if not audio:
        return usage
    audio = min(audio, usage.uncached_tokens)
    return msgspec.structs.replace(usage, input_audio_tokens=audio)


def added(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
        cache_write_1h_tokens=sum(usage.cache_write_1h_tokens for usage in usages),
        rewritten_tokens=sum(usage.rewritten_tokens for usage in usages),
        web_searches=sum(usage.web_searches for usage in usages),
        input_audio_tokens=sum(usage.input_audio_tokens for usage in usages),
        output_audio_tokens=sum(usage.output_audio_tokens for usage in usages),
        output_image_tokens=sum(usage.output_image_tokens for usage in usages),
        # None unless all name the same.
        service_tier=usages[0].service_tier
        if len({usage.service_tier for usage in usages}) == 1
        else None,
        prompt_details=_added_details([usage.prompt_details for usage in usages]),
        completion_details=_added_details([usage.completion_details for usage in usages]),
        estimated=any(usage.estimated for usage in usages),
        parts=tuple(usages),
    )


def _added_details(details: list[FreeObject | None]) -> FreeObject | None:
    total: FreeObject = {}
    for counts in details:
        for name, count in (counts or {}).items():
            if isinstance(count, int) and not isinstance(count, bool):
                total[name] = total.get(name, 0) + count
    return total or None


class ImpossibleCount(ValueError):
    """Signals an impossible value in place of a count in a usage report."""


def read_count(found: object) -> int | None:
    """None if it's missing. Raises ImpossibleCount unless it's an integer from 0 to 2^53."""
    if found is None:
        return None
    # `isinstance` takes booleans.
    if type(found) is int and 0 <= found <= COUNT_MAX:
        return found
    raise ImpossibleCount


def first_count(reported: FreeObject, names: tuple[str, ...]) -> int | None:
    for name in names:
        count = read_count(reported.get(name))
        if count is not None:
            return count
    return None


def cached_audio_tokens(details: FreeObject | None) -> int | None:
    """As OpenAI reports them."""
    cached = (details or {}).get("cached_tokens_details")
    return read_count(cached.get("audio_tokens")) if isinstance(cached, dict) else None


def read_service_tier(reported: FreeObject) -> str | None:
    """Of an Anthropic report."""
    found = reported.get("service_tier")
    return found if isinstance(found, str) and found else None
