"""Tests how Gemini's usage reports are read: running totals, thoughts, cached tokens, searches, modalities and
service tiers."""

from typing import Any

from tests.support.tables import each
from tollkeeper.core.usage import NO_REPORT, ReportedUsage, Usage, merged, normalised
from tollkeeper.providers.gemini.usage import read_usage


def _used(*reports: dict[str, Any], is_final: bool = True, searches: int = 0) -> Usage | None:
    total = NO_REPORT
    for number, reported in enumerate(reports, 1):
        last = is_final and number == len(reports)
        usage = read_usage(reported, is_final=last, searches=searches).usage
        assert usage is not None
        assert usage.written == reported
        total = merged(total, usage)
    return normalised(total)


def test_thoughts_are_beside_the_candidates() -> None:
    reported = {
        "promptTokenCount": 8,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 81,
        "totalTokenCount": 96,
    }
    used = Usage(8, 88, reasoning_tokens=81, completion_details={"reasoning_tokens": 81})
    assert _used(reported) == used


def test_thoughts_are_inside_where_the_total_says_so() -> None:
    reported = {
        "promptTokenCount": 8,
        "candidatesTokenCount": 88,
        "thoughtsTokenCount": 81,
        "totalTokenCount": 96,
    }
    found = _used(reported)
    assert found is not None
    assert (found.completion_tokens, found.reasoning_tokens) == (88, 81)


def test_a_cache_is_inside_the_prompt() -> None:
    reported = {
        "promptTokenCount": 2000,
        "cachedContentTokenCount": 1500,
        "candidatesTokenCount": 10,
        "totalTokenCount": 2010,
    }
    found = _used(reported)
    assert found == Usage(2000, 10, cached_tokens=1500, prompt_details={"cached_tokens": 1500})
    assert found.uncached_tokens == 500


def test_what_a_search_puts_into_the_prompt_is_not_charged() -> None:
    """Each query has a fee. The tokens of the search results count neither as input nor as output."""
    reported = {
        "promptTokenCount": 20,
        "toolUsePromptTokenCount": 300,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 335,
    }
    found = _used(reported, searches=2)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens, found.web_searches) == (20, 15, 2)


def test_what_a_search_puts_into_the_prompt_is_beside_its_count() -> None:
    """Uses the counts of a published call to the real service. Their total is the sum of all four."""
    reported = {
        "promptTokenCount": 80,
        "toolUsePromptTokenCount": 237,
        "candidatesTokenCount": 173,
        "thoughtsTokenCount": 60,
        "totalTokenCount": 550,
    }
    found = _used(reported)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens, found.total_tokens) == (80, 233, 313)
    assert found.reasoning_tokens == 60


def test_thoughts_inside_of_the_candidates_are_told_beside_a_search_too() -> None:
    reported = {
        "promptTokenCount": 80,
        "toolUsePromptTokenCount": 237,
        "candidatesTokenCount": 173,
        "thoughtsTokenCount": 60,
        "totalTokenCount": 490,
    }
    found = _used(reported)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (80, 173)


def test_a_total_without_what_a_search_found_counts_as_it_is() -> None:
    reported = {
        "promptTokenCount": 8,
        "toolUsePromptTokenCount": 350,
        "candidatesTokenCount": 4,
        "totalTokenCount": 12,
    }
    found = _used(reported)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (8, 4)


def test_the_last_total_counts_even_where_it_falls() -> None:
    found = _used(
        {"promptTokenCount": 15, "totalTokenCount": 15},
        {"promptTokenCount": 15, "candidatesTokenCount": 3, "totalTokenCount": 18},
        {"promptTokenCount": 13, "candidatesTokenCount": 8, "totalTokenCount": 21},
    )
    assert found == Usage(13, 8)


def test_output_that_is_not_told_yet_is_unknown() -> None:
    early = {"promptTokenCount": 15, "thoughtsTokenCount": 4, "totalTokenCount": 19}
    assert _used(early, is_final=False) is None
    # The answer ended without output: the prompt was blocked, or there were only thoughts.
    assert _used({"promptTokenCount": 15, "totalTokenCount": 15}) == Usage(15, 0)
    found = _used(early)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (15, 4)


def test_audio_by_modality() -> None:
    reported = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 20,
        "totalTokenCount": 120,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 30},
            {"modality": "AUDIO", "tokenCount": 70},
        ],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 25}],
        "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 20}],
    }
    found = _used(reported)
    assert found is not None
    assert (found.input_audio_tokens, found.output_audio_tokens) == (45, 20)
    assert found.prompt_details == {"cached_tokens": 40, "audio_tokens": 70}


def test_images_by_modality() -> None:
    reported = {
        "promptTokenCount": 10,
        "candidatesTokenCount": 1300,
        "totalTokenCount": 1310,
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
    }
    found = _used(reported)
    assert found is not None
    assert (found.completion_tokens, found.output_image_tokens) == (1300, 1290)
    assert found.completion_details == {"image_tokens": 1290}


# Fields of the report that contain the service tier, and the tier whose prices apply.
TIERS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"serviceTier": "standard"}, "standard"),
    ({"serviceTier": "flex"}, "flex"),
    ({"serviceTier": "PRIORITY"}, "priority"),
    ({"serviceTier": "SERVICE_TIER_PRIORITY"}, "priority"),
    ({"trafficType": "ON_DEMAND"}, None),
    ({"trafficType": "ON_DEMAND_FLEX"}, "flex"),
    ({"trafficType": "ON_DEMAND_PRIORITY"}, "priority"),
    ({"trafficType": "PROVISIONED_THROUGHPUT"}, "provisioned_throughput"),
    ({"serviceTier": 7, "trafficType": ["x"]}, None),
    ({"serviceTier": ""}, None),
]


@each(("fields", "tier"), TIERS)
def test_the_service_tier_is_in_the_report(fields: dict[str, Any], tier: str | None) -> None:
    """The Gemini API reports the service tier, and Vertex AI reports the type of traffic."""
    reported = {"promptTokenCount": 8, "candidatesTokenCount": 7, "totalTokenCount": 15}
    found = _used({**reported, **fields})
    assert found is not None
    assert found.service_tier == tier


def test_the_service_tier_may_come_before_any_count() -> None:
    found = _used(
        {"trafficType": "ON_DEMAND_PRIORITY"},
        {"promptTokenCount": 8, "candidatesTokenCount": 7, "totalTokenCount": 15},
    )
    assert found is not None
    assert found.service_tier == "priority"


@each("count", [-1, 1.5, "7", True, 2**60])
@each(
    "name",
    [
        *("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount"),
        *("cachedContentTokenCount", "toolUsePromptTokenCount"),
    ],
)
def test_a_count_that_can_be_none(name: str, count: Any) -> None:
    reported = {"promptTokenCount": 1, "candidatesTokenCount": 1, name: count}
    report = read_usage(reported, is_final=True)
    assert (report.usage, report.impossible) == (None, reported)


@each("reported", [[], "x", 7, None])
def test_a_report_that_is_no_object(reported: Any) -> None:
    assert read_usage(reported, is_final=True).usage == ReportedUsage()
