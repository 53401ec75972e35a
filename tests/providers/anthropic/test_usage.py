"""Tests usage reports of Messages servers: how reports are merged, cache writes by lifetime, and iterations
that the totals do not include."""

from typing import Any

from tests.support.tables import each
from tollkeeper.core.usage import (
    NO_REPORT,
    ReportedUsage,
    Usage,
    merged,
    normalised,
    possible_usages,
)
from tollkeeper.providers.anthropic.usage import UsageReader


def _merged(*reports: dict[str, Any], unnamed_is_1h: bool = False) -> Usage | None:
    """Returns the usage of a stream with these reports, of which the last is final."""
    reader = UsageReader()
    total = NO_REPORT
    for number, reported in enumerate(reports, 1):
        usage = reader.read(reported, is_final=number == len(reports)).usage
        assert usage is not None
        total = merged(total, usage)
    return next(iter(possible_usages(total, unnamed_is_1h=unnamed_is_1h)), None)


def _counts(usage: Usage | None) -> tuple[int, ...]:
    assert usage is not None
    return (
        usage.uncached_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.completion_tokens,
    )


def _split(short: int, long: int) -> dict[str, Any]:
    return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}


_START = {
    "input_tokens": 10,
    "cache_read_input_tokens": 200,
    "cache_creation_input_tokens": 70,
    "cache_creation": _split(50, 20),
    "output_tokens": 1,
}


@each(
    ("last", "counts"),
    [
        ({"output_tokens": 7}, (10, 200, 50, 20, 7)),
        # The input grew: the last report counts.
        ({"input_tokens": 60, "output_tokens": 7}, (60, 200, 50, 20, 7)),
        ({"cache_read_input_tokens": 0, "output_tokens": 7}, (10, 0, 50, 20, 7)),
        # Added writes have the request's lifetime. If the total falls, 5-minute writes fall first.
        ({"cache_creation_input_tokens": 100, "output_tokens": 7}, (10, 200, 80, 20, 7)),
        ({"cache_creation_input_tokens": 30, "output_tokens": 7}, (10, 200, 10, 20, 7)),
        ({"cache_creation_input_tokens": 5, "output_tokens": 7}, (10, 200, 0, 5, 7)),
        ({"cache_creation_input_tokens": 0, "output_tokens": 7}, (10, 200, 0, 0, 7)),
    ],
)
def test_the_last_word_with_the_first_split(last: dict[str, Any], counts: tuple[int, ...]) -> None:
    assert _counts(_merged(_START, last)) == counts


@each(("hour", "counts"), [(False, (70, 0)), (True, (0, 70))])
def test_writes_without_any_split_have_the_lifetime_of_the_request(
    hour: bool, counts: tuple[int, int]
) -> None:
    start = {"input_tokens": 10, "cache_creation_input_tokens": 70, "output_tokens": 1}
    for reports in ((start, {"output_tokens": 7}), ({**start, "output_tokens": 7},)):
        assert _counts(_merged(*reports, unnamed_is_1h=hour)) == (10, 0, *counts, 7)


@each(("hour", "counts"), [(False, (80, 20)), (True, (50, 50))])
def test_a_split_that_does_not_cover_all_writes(hour: bool, counts: tuple[int, int]) -> None:
    whole = {**_START, "cache_creation_input_tokens": 100}
    grown = {"cache_creation_input_tokens": 100, "output_tokens": 1}
    for reports in ((whole,), (_START, grown)):
        assert _counts(_merged(*reports, unnamed_is_1h=hour)) == (10, 200, *counts, 1)


def test_details_for_callers() -> None:
    details = {"thinking_tokens": 4}
    usage = _merged(_START, {"output_tokens": 7, "output_tokens_details": details})
    assert usage is not None
    assert usage.reasoning_tokens == 4
    assert (usage.prompt_details, usage.completion_details) == (
        {"cached_tokens": 200},
        {"reasoning_tokens": 4},
    )


def test_fees_of_searches() -> None:
    used = {"web_search_requests": 3, "web_fetch_requests": 1}
    usage = _merged(_START, {"output_tokens": 7, "server_tool_use": used})
    assert usage is not None
    assert usage.web_searches == 3


@each("kind", ["compaction", "advisor_message"])
def test_iterations_that_stand_apart_are_added(kind: str) -> None:
    apart = {
        "type": kind,
        "input_tokens": 1000,
        "output_tokens": 100,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 5,
        "cache_creation": _split(2, 3),
    }
    inside = {**apart, "type": "message"}
    last = {"output_tokens": 7, "iterations": [apart, inside, 7, {"type": "fallback_message"}]}
    assert _counts(_merged({**_START, **last})) == (1010, 230, 52, 23, 107)


@each("kind", ["compaction", "advisor_message"])
def test_iterations_are_added_to_counts_that_only_the_first_report_has(kind: str) -> None:
    """The last report may contain only the output tokens and the iterations."""
    apart = {
        "type": kind,
        "input_tokens": 1000,
        "output_tokens": 100,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 5,
        "cache_creation": _split(2, 3),
    }
    last = {"output_tokens": 7, "iterations": [apart]}
    assert _counts(_merged(_START, last)) == (1010, 230, 52, 23, 107)
    # Each report repeats all earlier iterations, so they must not be added twice.
    assert _counts(_merged(_START, last, last)) == (1010, 230, 52, 23, 107)


def test_iterations_do_not_count_twice_for_a_report_after_them() -> None:
    apart = {"type": "compaction", "input_tokens": 1000, "output_tokens": 100}
    first = {**_START, "iterations": [apart]}
    assert _counts(_merged(first, {"output_tokens": 7}))[0] == 1010


def test_the_speed_of_an_answer_is_its_service_tier() -> None:
    """Fast answers have a separate price. Only the first report contains the speed."""
    for start, tier in (
        ({**_START, "speed": "fast", "service_tier": "standard"}, "speed-fast"),
        ({**_START, "speed": "standard", "service_tier": "standard"}, "standard"),
        ({**_START, "speed": None, "service_tier": "priority"}, "priority"),
        ({**_START, "speed": 7}, None),
    ):
        usage = _merged(start, {"output_tokens": 7})
        assert usage is not None
        assert usage.service_tier == tier


def test_before_the_end_nothing_is_known_of_the_output() -> None:
    report = UsageReader().read(_START, is_final=False).usage
    assert report is not None
    assert (report.prompt_tokens, report.completion_tokens) == (10, None)
    assert normalised(report) is None


@each("count", [-1, 1.5, "7", True, 2**60])
@each(
    "name",
    ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"],
)
def test_a_count_that_can_be_none_is_absurd(name: str, count: object) -> None:
    reported = {**_START, name: count}
    report = UsageReader().read(reported, is_final=True)
    assert (report.usage, report.impossible) == (None, reported)


@each("reported", [[], "7", 7])
def test_a_report_that_is_no_object_says_nothing(reported: object) -> None:
    assert UsageReader().read(reported, is_final=True).usage == ReportedUsage()
