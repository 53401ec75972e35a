"""Tests how Amazon Bedrock's usage reports are read."""

from typing import Any

from tests.support.tables import each
from tollkeeper.core.usage import Usage, normalised
from tollkeeper.providers.converse.answer import read_usage


def _usage(**reported: Any) -> Usage | None:
    report = read_usage(reported).usage
    return None if report is None else normalised(report)


@each(
    ("reported", "usage"),
    [
        ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}, Usage(10, 5)),
        # `inputTokens` does not include cache reads and writes.
        (
            {
                "inputTokens": 10,
                "outputTokens": 5,
                "totalTokens": 1115,
                "cacheReadInputTokens": 1000,
                "cacheWriteInputTokens": 100,
            },
            Usage(1110, 5, cached_tokens=1000, cache_write_tokens=100),
        ),
        # Cache reads and writes are added even if the total does not include them.
        (
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "cacheReadInputTokens": 1000},
            Usage(1010, 5, cached_tokens=1000),
        ),
        (
            {
                "inputTokens": 10,
                "outputTokens": 5,
                "totalTokens": 15,
                "cacheReadInputTokenCount": 1000,
                "cacheWriteInputTokenCount": 7,
            },
            Usage(1017, 5, cached_tokens=1000, cache_write_tokens=7),
        ),
        (
            {
                "inputTokens": 10,
                "outputTokens": 5,
                "cacheWriteInputTokens": 100,
                "cacheDetails": [
                    {"ttl": "1h", "inputTokens": 60},
                    {"ttl": "5m", "inputTokens": 40},
                ],
            },
            Usage(110, 5, cache_write_tokens=40, cache_write_1h_tokens=60),
        ),
        # Writes without a named lifetime have the lifetime of the request, which is 5 minutes here.
        (
            {
                "inputTokens": 10,
                "outputTokens": 5,
                "cacheWriteInputTokens": 100,
                "cacheDetails": [{"ttl": "1h", "inputTokens": 40}],
            },
            Usage(110, 5, cache_write_tokens=60, cache_write_1h_tokens=40),
        ),
        ({"inputTokens": 10, "outputTokens": 5, "cacheDetails": []}, Usage(10, 5)),
        # Tokens that only the total contains count as output.
        ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 20}, Usage(10, 10)),
    ],
)
def test_a_report(reported: dict[str, Any], usage: Usage) -> None:
    found = _usage(**reported)
    assert found is not None
    details = found.prompt_details
    assert details == ({"cached_tokens": usage.cached_tokens} if usage.cached_tokens else None)
    assert (
        found.prompt_tokens,
        found.completion_tokens,
        found.cached_tokens,
        found.cache_write_tokens,
        found.cache_write_1h_tokens,
    ) == (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
    )


@each("count", [-1, 1.5, "x", True, 2**60])
def test_a_count_that_is_none_makes_the_report_absurd(count: Any) -> None:
    report = read_usage({"inputTokens": count, "outputTokens": 5})
    assert report.usage is None
    assert report.impossible == {"inputTokens": count, "outputTokens": 5}


@each("reported", [None, [], "x", {}])
def test_a_report_that_says_nothing(reported: Any) -> None:
    report = read_usage(reported, "priority").usage
    assert report is not None
    assert normalised(report) is None
    assert report.service_tier == "priority"
