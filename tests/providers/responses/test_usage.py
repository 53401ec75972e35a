"""Tests the usage of Responses servers. Details are part of the token counts; searches and costs are not."""

from typing import Any

from tests.support.tables import each
from tollkeeper.core.usage import ReportedUsage, Usage, normalised
from tollkeeper.providers.responses.usage import read_responses_usage

PLAIN: dict[str, Any] = {"input_tokens": 1420, "output_tokens": 72, "total_tokens": 1492}


def _used(reported: dict[str, Any], *, searches_in_output: int = 0) -> Usage:
    found = read_responses_usage(reported, searches_in_output=searches_in_output)
    assert found.impossible is None
    assert found.usage is not None
    assert found.usage.written == reported
    usage = normalised(found.usage)
    assert usage is not None
    return usage


# By server: the details of the input, and the expected (uncached, cache read, cache write).
CACHES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "OpenAI": ({"cached_tokens": 1280}, (140, 1280, 0)),
    "OpenAI: writes": ({"cached_tokens": 20, "cache_write_tokens": 1400}, (0, 20, 1400)),
    "Perplexity": (
        {"cache_read_input_tokens": 1000, "cache_creation_input_tokens": 400},
        (20, 1000, 400),
    ),
    "nobody": ({}, (1420, 0, 0)),
}


@each("who", CACHES)
def test_caches_are_inside_the_input(who: str) -> None:
    details, expected = CACHES[who]
    usage = _used({**PLAIN, "input_tokens_details": details})
    assert (usage.uncached_tokens, usage.cached_tokens, usage.cache_write_tokens) == expected
    assert usage.completion_tokens == 72


def test_reasoning_is_inside_the_output() -> None:
    """xAI's chat counts reasoning in addition to the output; its Responses protocol does not. The total
    shows the difference."""
    reported = {
        "input_tokens": 216,
        "output_tokens": 923,
        "output_tokens_details": {"reasoning_tokens": 323},
        "total_tokens": 1139,
    }
    usage = _used(reported)
    assert (usage.prompt_tokens, usage.completion_tokens) == (216, 923)
    assert usage.reasoning_tokens == 323


# By server: the fields of the report, and the expected number of searches.
SEARCHES: dict[str, tuple[dict[str, Any], int]] = {
    "OpenAI: only in the output": ({}, 2),
    "xAI": ({"server_side_tool_usage_details": {"web_search_calls": 3}}, 3),
    "xAI: all tools": ({"num_server_side_tools_used": 4}, 4),
    "xAI: none": ({"num_server_side_tools_used": 0}, 0),
    "OpenRouter": ({"server_tool_use_details": {"web_search_requests": 1}}, 1),
    "Perplexity": ({"tool_calls_details": {"web_search": {"invocation": 5}}}, 5),
    "Perplexity: its older name": (
        {"tool_calls_details": {"search_web": {"invocation": 6}, "fetch_url": {"invocation": 9}}},
        6,
    ),
    "Perplexity: a number": ({"tool_calls_details": {"web_search": 7}}, 7),
    "Perplexity: other tools": ({"tool_calls_details": {"fetch_url": {"invocation": 9}}}, 0),
}


@each("who", SEARCHES)
def test_searches(who: str) -> None:
    fields, expected = SEARCHES[who]
    assert _used({**PLAIN, **fields}, searches_in_output=2).web_searches == expected


@each(
    ("fields", "cost"),
    [
        ({"cost_in_usd_ticks": 37_756_000}, 3_775_600_000),
        ({"cost_in_usd_ticks": 10**60}, None),
        ({"cost_in_usd_ticks": -1}, None),
        ({"cost_in_usd_ticks": 1.5}, None),
        ({"cost": 10**5000}, None),
        ({"cost": 0.0133}, 13_300_000_000),
        ({"cost": {"currency": "USD", "input_cost": 0.001, "total_cost": 0.006}}, 6_000_000_000),
        (
            {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}},
            500_000_000_000,
        ),
        ({"cost": {"currency": "USD"}}, None),
        ({}, None),
    ],
)
def test_the_backends_own_price(fields: dict[str, Any], cost: int | None) -> None:
    found = read_responses_usage({**PLAIN, **fields}).usage
    assert found is not None
    assert found.cost_picousd == cost


@each("count", [-1, 1.5, "7", True, 2**60])
@each("name", PLAIN)
def test_a_count_that_can_be_none(name: str, count: Any) -> None:
    reported = {**PLAIN, name: count}
    found = read_responses_usage(reported)
    assert (found.usage, found.impossible) == (None, reported)


@each("reported", [[], "x", 7, None])
def test_a_report_that_is_no_object(reported: Any) -> None:
    assert read_responses_usage(reported).usage == ReportedUsage()
