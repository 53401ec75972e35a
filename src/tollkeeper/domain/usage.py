"""Defines a call's usage, and merges and normalises the usage reports of backends.

Backends report usage in different forms. The code of each wire (a protocol towards model servers)
converts a report to a `ReportedUsage`, whose fields may be missing. `merged` combines the reports
of one answer and retains the last value of each field. A report may be ambiguous: `possible_usages`
returns a `Usage` for each possible meaning, in which no token is counted twice.
`metering.read_usage` chooses one of these meanings.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from tollkeeper.domain.prompt import FreeObject

# A higher count in a usage report is impossible.
COUNT_MAX = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Contains the counts of one call; none is negative. `prompt_tokens` includes cache reads and
    writes, and `completion_tokens` includes reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # Input written to a cache for five minutes, and for an hour.
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    # Input that was both read from a cache and written to one. The counts of cache reads and of
    # cache writes both include these tokens, and both are charged.
    rewritten_tokens: int = 0
    web_searches: int = 0
    # Audio tokens in the input that is neither read from a cache nor written to one, and audio
    # tokens in the output.
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    # Image tokens in the output.
    output_image_tokens: int = 0
    # The service tier that the answer names.
    service_tier: str | None = None
    # The detail objects as the backend wrote them, for clients that read counts other than the
    # fields above.
    prompt_details: dict[str, Any] | None = None
    completion_details: dict[str, Any] | None = None
    # Whether the gateway's own count replaced a missing or wrong count of the backend, or the answer
    # broke off after a running total.
    estimated: bool = False
    # The usage of each answer, if this usage is the sum of several answers.
    parts: "tuple[Usage, ...]" = ()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        """Returns the number of input tokens that were neither read from a cache nor written to
        one."""
        written = self.cache_write_tokens + self.cache_write_1h_tokens
        return self.prompt_tokens - self.cached_tokens - written + self.rewritten_tokens


class ReportedUsage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Contains one usage report in a form that is independent of the wire. None means that the
    report lacks the value."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    # The number of all cache writes, of those for five minutes, and of those for an hour.
    cache_write_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    # Whether the backend counts cache reads and writes in addition to `prompt_tokens` instead of
    # including them there.
    cache_adds_to_prompt: bool | None = None
    reasoning_tokens: int | None = None
    web_searches: int | None = None
    # Whether the backend reports the prompt's count before its answer, and the output's count at
    # the end.
    reports_prompt_before_output: bool | None = None
    # Audio tokens in the prompt, in the cached part of the prompt, and in the completion.
    input_audio_tokens: int | None = None
    cached_audio_tokens: int | None = None
    output_audio_tokens: int | None = None
    # Image tokens in the completion.
    output_image_tokens: int | None = None
    service_tier: str | None = None
    # Whether the report counts only the tokens so far. If the answer then breaks off, the backend
    # may bill more tokens.
    is_running_total: bool = False
    # The usage of each answer, if the report is about several answers. All other counts are then
    # None.
    parts: tuple[Usage, ...] | None = None
    # The price in picousd that the backend states. It is not charged. It is stored, and it helps to
    # choose between several meanings of the report.
    cost_picousd: int | None = None
    prompt_details: FreeObject | None = None
    completion_details: FreeObject | None = None
    # The unchanged report.
    written: FreeObject | None = None


NO_REPORT = ReportedUsage()
# Reads all counts of a report other than those of the prompt, of the completion and of both together.
# Most reports have none of them.
further_counts = attrgetter(
    *("cached_tokens", "cache_write_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens"),
    *("reasoning_tokens", "web_searches", "input_audio_tokens", "output_audio_tokens"),
    *("output_image_tokens", "parts"),
)


def merged(earlier: ReportedUsage, later: ReportedUsage) -> ReportedUsage:
    """Returns the later report, completed with the fields that only the earlier report has. The
    earlier total is not used, because it is the sum of the earlier counts, unless the later report
    names only a service tier."""
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
    """Returns the most likely meaning of the report; None if the report lacks the count of the
    prompt or of the completion."""
    possible = possible_usages(report)
    return possible[0] if possible else None


def possible_usages(report: ReportedUsage, *, unnamed_is_1h: bool = False) -> list[Usage]:
    """Returns the possible meanings of the report, the most likely first. Returns an empty list if
    the report lacks the count of the prompt or of the completion. `unnamed_is_1h` means that cache
    writes without a stated lifetime are for an hour instead of five minutes.

    The report does not say whether cache reads and cache writes are different tokens of the prompt,
    the same tokens of the prompt (read and then written again), or tokens in addition to the
    prompt's count.
    """
    if report.parts is not None:
        return [added(report.parts)]
    prompt, completion = report.prompt_tokens, report.completion_tokens
    if prompt is None or completion is None:
        return []
    read = report.cached_tokens or 0
    writes = _writes_by_lifetime(report, unnamed_is_1h)
    written = writes[0] + writes[1]
    # Each possible meaning is a pair: the tokens of the whole prompt, and the tokens that were both
    # read and written. The prompt's count either excludes the cache tokens, or includes tokens that
    # were read from the cache and written to it again.
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
    """Returns the number of all cache writes in one report. The report may contain the total, or
    the counts for short and long lifetimes, or all three."""
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
        # A later report has a smaller total, but the counts by lifetime are those of an earlier
        # report. As many writes as possible count for an hour, which has the higher price.
        return written - min(long, written), min(long, written)
    return (short, written - short) if unnamed_is_1h else (written - long, long)


def _totals(prompt: int, completion: int, reasoning: int | None) -> tuple[int, int]:
    """Returns the possible totals of a report whose prompt and completion include all other counts,
    except perhaps reasoning."""
    return prompt + completion, prompt + completion + (reasoning or 0)


def _read_as(
    report: ReportedUsage,
    reported_prompt: int,
    completion: int,
    writes: tuple[int, int],
    prompt: int,
    rewritten: int,
) -> Usage:
    """Builds the usage for one meaning of the report. `prompt` is the length of the whole prompt,
    and `rewritten` the number of tokens that were both read from a cache and written to one."""
    total, reasoning = report.total_tokens, report.reasoning_tokens or 0
    if total is not None and total != prompt + completion:
        if total == reported_prompt + completion + reasoning:
            # The completion's count does not include reasoning, and the total omits the cache
            # tokens that are counted in addition to the prompt.
            completion += reasoning
        elif total > prompt + completion:
            # The total includes other tokens, usually reasoning, which is output.
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
    """Adds the usage of several answers to one call."""
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
        # None unless all usages name the same tier.
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
    """Returns the count; None if the report lacks it. Raises ImpossibleCount if the value is not an
    integer, is negative, or is greater than 2^53."""
    if found is None:
        return None
    # `type` instead of `isinstance` excludes booleans.
    if type(found) is int and 0 <= found <= COUNT_MAX:
        return found
    raise ImpossibleCount


def first_count(reported: FreeObject, names: tuple[str, ...]) -> int | None:
    """Returns the first count with one of these names in the report; None if there is none."""
    for name in names:
        count = read_count(reported.get(name))
        if count is not None:
            return count
    return None


def cached_audio_tokens(details: FreeObject | None) -> int | None:
    """Returns the number of audio tokens in the cached input, from the details that OpenAI
    reports."""
    cached = (details or {}).get("cached_tokens_details")
    return read_count(cached.get("audio_tokens")) if isinstance(cached, dict) else None


def read_service_tier(reported: FreeObject) -> str | None:
    """Returns the service tier that an Anthropic usage report names; None if there is none."""
    found = reported.get("service_tier")
    return found if isinstance(found, str) and found else None
