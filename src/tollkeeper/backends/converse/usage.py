"""Reads the usage reports of Amazon Bedrock. In these reports, `inputTokens` does not include the
tokens that were read from the cache or written to the cache. `cacheDetails` contains the written tokens
by lifetime.
"""

from typing import Any

from tollkeeper.backends.answer_json import usage_report
from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import ReportedUsage, all_writes, read_count

_ONE_HOUR = "1h"


def read_usage(reported: Any, service_tier: str | None = None) -> UsageReport:
    """Reads a usage report. `service_tier` is the tier that the answer names outside of its
    report."""
    return usage_report(reported, lambda usage: _read(usage, service_tier), service_tier)


def _read(reported: FreeObject, service_tier: str | None) -> ReportedUsage:
    # The report has two possible names for the tokens read from the cache, and for those written to
    # it. Some answers contain both names.
    cached = read_count(reported.get("cacheReadInputTokens"))
    if cached is None:
        cached = read_count(reported.get("cacheReadInputTokenCount"))
    cache_writes = read_count(reported.get("cacheWriteInputTokens"))
    if cache_writes is None:
        cache_writes = read_count(reported.get("cacheWriteInputTokenCount"))
    short, long = _by_lifetime(reported.get("cacheDetails"))
    return ReportedUsage(
        prompt_tokens=read_count(reported.get("inputTokens")),
        completion_tokens=read_count(reported.get("outputTokens")),
        total_tokens=read_count(reported.get("totalTokens")),
        cached_tokens=cached,
        cache_write_tokens=all_writes(cache_writes, short, long),
        cache_write_5m_tokens=short,
        cache_write_1h_tokens=long,
        cache_adds_to_prompt=True,
        service_tier=service_tier,
        # The details that clients see have the names of the chat protocol.
        prompt_details=None if cached is None else {"cached_tokens": cached},
        written=reported,
    )


def _by_lifetime(details: Any) -> tuple[int | None, int | None]:
    """Returns the tokens written to the cache for five minutes (all that are not for one hour), and
    those written for one hour. Both are None if the report has no details."""
    parts = (
        [part for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    )
    if not parts:
        return None, None
    counts = [(part.get("ttl"), read_count(part.get("inputTokens")) or 0) for part in parts]
    long = sum(count for lifetime, count in counts if lifetime == _ONE_HOUR)
    return sum(count for _, count in counts) - long, long
