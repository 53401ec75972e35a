"""Tests how usage reports of different chat servers are read: token counts, costs and searches."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.providers.chat.dialects import DIALECTS, PLAIN
from tests.support.tables import each
from tollkeeper.core.usage import NO_REPORT, Usage, merged, normalised
from tollkeeper.providers.chat.usage import read_chat_usage


def usage_of(report: object) -> Usage | None:
    found = read_chat_usage(report)
    assert found.impossible is None
    assert found.usage is not None
    return normalised(found.usage)


def test_a_cache_that_reports_leave_open() -> None:
    """Grok at Azure counts cached tokens in addition to the prompt, also if they are fewer."""
    usage = {"prompt_tokens": 150, "completion_tokens": 4}
    for cached in (128, 1280):
        report = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
        found = read_chat_usage(report, cache_adds_to_prompt=True).usage
        assert found is not None
        assert normalised(found) == replace(
            Usage(150 + cached, 4, cached_tokens=cached),
            prompt_details=report["prompt_tokens_details"],
        )
    assert read_chat_usage(usage, cache_adds_to_prompt=True) == read_chat_usage(usage)


def counts(report: dict[str, Any]) -> tuple[int, int, int, int, int]:
    usage = usage_of(report)
    assert usage is not None
    return (
        usage.uncached_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens + usage.cache_write_1h_tokens,
        usage.completion_tokens,
        usage.reasoning_tokens,
    )


@each("dialect", DIALECTS)
def test_dialects(dialect: str) -> None:
    report, expected = DIALECTS[dialect]
    assert counts(report) == expected


def test_lifetimes_of_cache_writes() -> None:
    usage = usage_of(DIALECTS["Anthropic, by lifetime"][0])
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (10, 30)


@each(
    ("fields", "cost"),
    [
        ({"cost": 0.0133}, 13_300_000_000),
        ({"cost": {"total_cost": 0.006}}, 6_000_000_000),
        ({"cost_in_usd_ticks": 37_756_000}, 3_775_600_000),
        ({"cost_in_usd_ticks": 10**60}, None),
        ({"cost_in_usd_ticks": -1}, None),
        ({"cost_in_usd_ticks": 1.5}, None),
        ({"cost": 10**5000}, None),
        ({"cost": "x"}, None),
        ({"cost": -1}, None),
        ({"cost": None}, None),
        ({"cost": True}, None),
        ({"cost": 1e300}, None),
        # With the operator's own provider key, OpenRouter's charge is added to the provider's cost.
        (
            {
                "cost": 0.00001,
                "is_byok": True,
                "cost_details": {"upstream_inference_cost": 0.0002},
            },
            210_000_000,
        ),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None),
        ({"cost": 0, "is_byok": True}, None),
        ({"cost": 0.5, "is_byok": False, "cost_details": {}}, 500_000_000_000),
    ],
)
def test_the_backends_own_price(fields: dict[str, Any], cost: int | None) -> None:
    found = read_chat_usage({**PLAIN, **fields}).usage
    assert found is not None
    assert found.cost_picousd == cost


def test_searches() -> None:
    for fields in (
        {"server_tool_use": {"web_search_requests": 3}},
        {"server_tool_use_details": {"web_search_requests": 3}},
        {"num_search_queries": 3},
        {"prompt_tokens_details": {"cached_tokens": 0, "web_search_requests": 3}},
    ):
        usage = usage_of({**PLAIN, **fields})
        assert usage is not None
        assert usage.web_searches == 3


@each("report", [None, [], "x", 1, True, [PLAIN], {}, {"prompt_tokens": 5}])
def test_reports_that_say_nothing(report: object) -> None:
    assert usage_of(report) is None


@each("value", [True, -1, 1.0, 0.5, "1", [], {}, 2**53 + 1, 10**30], ids=repr)
@each("field", ["prompt_tokens", "completion_tokens", "total_tokens"])
def test_what_can_be_no_count(field: str, value: object) -> None:
    report = {**PLAIN, field: value}
    found = read_chat_usage(report)
    assert (found.usage, found.impossible) == (None, report)


def test_the_last_value_of_each_field_counts() -> None:
    reports = [
        {
            "prompt_tokens": 15,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        {"prompt_tokens": 15, "completion_tokens": 40},
        {"prompt_tokens": 13, "completion_tokens": 100},
    ]
    found = NO_REPORT
    for report in reports:
        later = read_chat_usage(report).usage
        assert later is not None
        found = merged(found, later)
    usage = normalised(found)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (13, 100, 4)
    assert found.written == reports[-1]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_names = st.sampled_from(
    [
        *PLAIN,
        *("prompt_tokens_details", "completion_tokens_details", "cached_tokens"),
        *("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation"),
        *("reasoning_tokens", "ephemeral_1h_input_tokens", "cost", "server_tool_use"),
    ]
)


@given(st.dictionaries(_names, _json | st.integers(0, 50) | st.dictionaries(_names, _json)))
def test_whatever_is_read_adds_up(report: dict[str, Any]) -> None:
    found = read_chat_usage(report)
    assert (found.usage is None) == (found.impossible is not None)
    usage = None if found.usage is None else normalised(found.usage)
    if usage is not None:
        for count in (usage.prompt_tokens, usage.completion_tokens, usage.uncached_tokens):
            assert type(count) is int
            assert count >= 0
        assert 0 <= usage.reasoning_tokens <= usage.completion_tokens


_VALUES = st.one_of(
    st.none(),
    st.integers(min_value=-1, max_value=2**54),
    st.integers(min_value=0, max_value=50),
    st.sampled_from([True, 1.0, 1.5, "3", [], {}]),
)
_DETAILS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.just({}),
    st.just("text"),
    st.dictionaries(
        st.sampled_from(
            ["cached_tokens", "audio_tokens", "reasoning_tokens", "accepted_prediction_tokens", "x"]
        ),
        _VALUES,
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "cost"]
        ),
        _VALUES,
    ),
    st.dictionaries(
        st.sampled_from(["prompt_tokens_details", "completion_tokens_details"]), _DETAILS
    ),
    st.sampled_from([None, "", "flex"]),
)
def test_the_short_way_reads_the_same(
    totals: dict[str, Any], details: dict[str, Any], tier: str | None
) -> None:
    """A report with only the three main counts is read by faster code, which must have the same result
    as the code for all other reports."""
    report = totals | details
    found = read_chat_usage(report, service_tier=tier)
    longer = read_chat_usage(report | {"another_field": None}, service_tier=tier)
    if found.usage is None:
        assert (found.impossible, longer.usage) == (report, None)
    else:
        assert longer.usage is not None
        assert found.usage == replace(longer.usage, written=report)


@each(
    ("lifetimes", "expected"),
    [
        ({"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}, (60, 40)),
        ({"ephemeral_1h_input_tokens": 100}, (0, 100)),
        ({}, (100, 0)),
        (None, (100, 0)),
        ("an hour", (100, 0)),
    ],
)
def test_lifetimes_of_cache_writes_among_the_details(
    lifetimes: Any, expected: tuple[int, int]
) -> None:
    details = {"cache_write_tokens": 100, "cache_creation_token_details": lifetimes}
    usage = usage_of({**PLAIN, "prompt_tokens": 110, "prompt_tokens_details": details})
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == expected
    assert usage.uncached_tokens == 10


def test_lifetimes_of_cache_writes_that_a_proxy_repeats_beside_the_details() -> None:
    usage = usage_of(
        {
            "prompt_tokens": 152,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 40},
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 70},
        }
    )
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (30, 70)
    assert usage.uncached_tokens == 12


def test_tokens_of_audio_that_only_the_total_has() -> None:
    usage = usage_of(
        {
            "prompt_tokens": 4,
            "completion_tokens": 635,
            "total_tokens": 3264,
            "prompt_audio_seconds": 203,
        }
    )
    assert usage is not None
    assert usage.input_audio_tokens == 2625
