"""What a call used: the reports of backends, merged, and normalised into one form.

Backends speak dialects; the reader of each wire turns a report into a `ReportedUsage`, whose fields
may be missing. `merged` keeps the last value of each field, and `readings` makes a `Usage` of them for
each thing that they can mean, in which nothing is counted twice. `metering.read_usage` chooses.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tollkeeper.domain.prompt import FreeObject

COUNT_MAX = 2**53


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Counts are not negative. Cache reads and writes are inside the prompt's count, reasoning is
    inside the completion's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # Input written to a cache, by how long it is kept there.
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    # Input that was read from a cache and written to one as well: it is in both of those counts, and
    # both have a price.
    rewritten_tokens: int = 0
    web_searches: int = 0
    # Audio among the input that was neither read from a cache nor written to one, and among the
    # output.
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    # Images among the output.
    output_image_tokens: int = 0
    # The service tier that the answer names.
    service_tier: str | None = None
    # The details as the backend wrote them, for callers that read more than the counts above.
    prompt_details: dict[str, Any] | None = None
    completion_details: dict[str, Any] | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        """Input that was neither read from a cache nor written to one."""
        written = self.cache_write_tokens + self.cache_write_1h_tokens
        return self.prompt_tokens - self.cached_tokens - written + self.rewritten_tokens


class ReportedUsage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One report, as its wire's reader understands it. None: the report does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    # All cache writes, and those of them whose lifetime the report names.
    cache_write_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    # Cache reads and writes come on top of the prompt's count and are not inside it.
    cache_is_beside_prompt: bool | None = None
    reasoning_tokens: int | None = None
    web_searches: int | None = None
    # The backend tells the prompt's count before it answers, and the output's at the end.
    counts_prompt_first: bool | None = None
    # Audio inside the counts of prompt and completion, and inside what was read from a cache.
    input_audio_tokens: int | None = None
    cached_audio_tokens: int | None = None
    output_audio_tokens: int | None = None
    # Images inside the count of the completion.
    output_image_tokens: int | None = None
    service_tier: str | None = None
    # What each of several answers used, if the report is about several. It has no other counts then.
    parts: tuple[Usage, ...] | None = None
    # The backend's own price in picousd: kept for reconciliation, not charged.
    cost_picousd: int | None = None
    prompt_details: FreeObject | None = None
    completion_details: FreeObject | None = None
    # The report as it came.
    written: FreeObject | None = None


_further_counts = attrgetter(
    *("cached_tokens", "cache_write_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens"),
    *("reasoning_tokens", "web_searches", "input_audio_tokens", "output_audio_tokens"),
    "output_image_tokens",
)


def merged(earlier: ReportedUsage | None, later: ReportedUsage) -> ReportedUsage:
    """The last value of each field. A field that only the earlier report has is kept, but for its
    total, which belongs to the counts beside it."""
    if earlier is None:
        return later
    values = {
        name: getattr(earlier, name) if value is None and name != "total_tokens" else value
        for name, value in msgspec.structs.asdict(later).items()
    }
    return ReportedUsage(**values)


def normalised(report: ReportedUsage) -> Usage | None:
    """Returns the usage, or None if the report names no count of the prompt or of the completion."""
    possible = readings(report)
    return possible[0] if possible else None


def readings(report: ReportedUsage, *, unnamed_is_1h: bool = False) -> list[Usage]:
    """Returns what the report can mean, the most likely first; nothing if it names no count of the
    prompt or of the completion. `unnamed_is_1h` is the lifetime of cache writes that the report does
    not name: an hour instead of five minutes.

    A report that names cache reads and cache writes can mean different tokens, or the same ones read
    and written again, or tokens beside the prompt.
    """
    if report.parts is not None:
        return [added(report.parts)]
    prompt, completion = report.prompt_tokens, report.completion_tokens
    if prompt is None or completion is None:
        return []
    read = report.cached_tokens or 0
    writes = _writes_by_lifetime(report, unnamed_is_1h)
    written = writes[0] + writes[1]
    if not (read or written):
        return [_read_as(report, prompt, completion, writes, prompt, 0)]
    beside = (prompt + read + written, 0)
    again = (prompt, min(read, written))
    if report.cache_is_beside_prompt or max(read, written) > prompt:
        forms = [beside]
    elif read + written <= prompt:
        forms = [(prompt, 0), again] if read and written else [(prompt, 0)]
    elif report.total_tokens in _totals(prompt, completion, report.reasoning_tokens):
        forms = [again, beside]
    else:
        forms = [beside, again]
    return [_read_as(report, prompt, completion, writes, *form) for form in forms]


def all_writes(written: int | None, short: int | None, long: int | None) -> int | None:
    """Returns all cache writes of one report, of which it may name the whole or the parts."""
    if short is None and long is None:
        return written
    return max(written or 0, (short or 0) + (long or 0))


def _writes_by_lifetime(report: ReportedUsage, unnamed_is_1h: bool) -> tuple[int, int]:
    """Returns the cache writes for five minutes and for an hour."""
    short, long = report.cache_write_5m_tokens or 0, report.cache_write_1h_tokens or 0
    written = report.cache_write_tokens
    if written is None:
        return short, long
    if written < short + long:
        # A later report has fewer than an earlier one has split: those that are left are the dearer.
        return written - min(long, written), min(long, written)
    return (short, written - short) if unnamed_is_1h else (written - long, long)


def _totals(prompt: int, completion: int, reasoning: int | None) -> tuple[int, int]:
    """Returns the totals of a report that counts everything else inside of prompt and completion."""
    return prompt + completion, prompt + completion + (reasoning or 0)


def _read_as(
    report: ReportedUsage,
    told_prompt: int,
    completion: int,
    writes: tuple[int, int],
    prompt: int,
    rewritten: int,
) -> Usage:
    total, reasoning = report.total_tokens, report.reasoning_tokens or 0
    if total is not None and total != prompt + completion:
        if total == told_prompt + completion + reasoning:
            # Reasoning is counted apart from both, and the total leaves out what is beside the
            # prompt.
            completion += reasoning
        elif total > prompt + completion:
            # Something is counted apart from both, which is reasoning as a rule: it is output.
            completion = total - prompt
    if not any(_further_counts(report)):
        # Most reports have no other counts.
        return Usage(
            prompt,
            completion,
            service_tier=report.service_tier,
            prompt_details=report.prompt_details,
            completion_details=report.completion_details,
        )
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
    """The usage of several calls together."""
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
        # The tier that all of them name.
        service_tier=usages[0].service_tier
        if len({usage.service_tier for usage in usages}) == 1
        else None,
        prompt_details=_added_details([usage.prompt_details for usage in usages]),
        completion_details=_added_details([usage.completion_details for usage in usages]),
    )


def _added_details(details: list[FreeObject | None]) -> FreeObject | None:
    total: FreeObject = {}
    for counts in details:
        for name, count in (counts or {}).items():
            if isinstance(count, int) and not isinstance(count, bool):
                total[name] = total.get(name, 0) + count
    return total or None


class AbsurdCount(ValueError):
    """A report has something in the place of a count that can be none."""


def read_count(found: object) -> int | None:
    """The count in a report; None where the report has none. Raises AbsurdCount for what can be no
    count: negative, fractional, text, beyond 2^53."""
    if found is None:
        return None
    # No boolean, which is an integer too.
    if type(found) is int and 0 <= found <= COUNT_MAX:
        return found
    raise AbsurdCount


def first_count(reported: FreeObject, names: tuple[str, ...]) -> int | None:
    """The first of these counts that the report has."""
    for name in names:
        count = read_count(reported.get(name))
        if count is not None:
            return count
    return None


def cached_audio_tokens(details: FreeObject | None) -> int | None:
    """The audio among the input that was read from a cache (OpenAI)."""
    cached = (details or {}).get("cached_tokens_details")
    return read_count(cached.get("audio_tokens")) if isinstance(cached, dict) else None


def read_service_tier(reported: FreeObject) -> str | None:
    """The service tier in a report (Anthropic)."""
    found = reported.get("service_tier")
    return found if isinstance(found, str) and found else None
