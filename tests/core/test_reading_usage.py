"""Tests how usage reports are read: which tokens they count twice, and how long a cache keeps tokens."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import MODEL, make_call
from tests.support.tables import each
from tollkeeper.core.catalog import Route
from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.inference import Call, Delta, UsageReport
from tollkeeper.core.messages_behavior import MessagesBehavior, PromptCaching
from tollkeeper.core.metering import Meter, read_usage
from tollkeeper.core.pricing import Bounds, PriceChange, cost_of, hold_picousd
from tollkeeper.core.usage import ReportedUsage, Usage, possible_usages

# The prices of Gemini 2.5 Flash at OpenRouter, in USD.
_GEMINI = {
    "prompt": "0.0000003",
    "completion": "0.0000025",
    "input_cache_read": "0.00000003",
    "input_cache_write": "0.000000083333",
}
_CLAUDE = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375",
    "input_cache_write_1h": "0.000006",
}
_5M, _1H = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def _call(prices: dict[str, str], caching: str = "caller", **fields: Any) -> Call:
    model = replace(
        MODEL,
        pricing=pricing_from_declared(prices, param="pricing"),
        messages=MessagesBehavior(caching=PromptCaching(caching)),
    )
    return make_call(catalog_model=model, **fields)


def _report(prompt: int, read: int, written: int, **fields: Any) -> ReportedUsage:
    return ReportedUsage(
        prompt_tokens=prompt,
        completion_tokens=100,
        cached_tokens=read,
        cache_write_tokens=written,
        **fields,
    )


def _cost(call: Call, usage: Usage | None) -> int:
    assert usage is not None
    return sum(cost_of(call.model.pricing, usage, images=0).values())


# Report fields which show that the same tokens were read from the cache and written again.
_TELLS: list[dict[str, int]] = [
    {"total_tokens": 2268},
    {"total_tokens": 2268, "cost_picousd": 497_000_000},
    {"cost_picousd": 497_000_000},
    # The stated cost has precedence over an impossible total.
    {"total_tokens": 1, "cost_picousd": 497_000_000},
]


@each("told", _TELLS)
def test_tokens_that_were_read_and_written_again_cost_both_and_no_more(
    told: dict[str, int],
) -> None:
    call = _call(_GEMINI)
    usage = read_usage(call, _report(2168, 2161, 2161, **told))
    assert usage is not None
    assert (usage.prompt_tokens, usage.uncached_tokens) == (2168, 7)
    expected = 7 * 300_000 + 2161 * 30_000 + 2161 * 83_333 + 100 * 2_500_000
    assert _cost(call, usage) == expected
    assert expected // 1_000_000 == 497


@each(
    "told",
    [{}, {"total_tokens": 6590}, {"total_tokens": 2268, "cost_picousd": 1_145_312_613}],
    ids=["nothing", "the total", "the price"],
)
def test_tokens_beside_the_prompt_are_still_read_as_such(told: dict[str, int]) -> None:
    """No field shows that tokens were counted twice, so the report is read as the higher cost."""
    usage = read_usage(_call(_GEMINI), _report(2168, 2161, 2161, **told))
    assert usage is not None
    assert (usage.prompt_tokens, usage.uncached_tokens) == (2168 + 2 * 2161, 2168)


def test_the_stated_price_tells_of_tokens_counted_twice_that_fit_the_prompt() -> None:
    """Unless the stated cost fits the other reading, cache reads and writes are different tokens."""
    call, told = _call(_GEMINI), {"total_tokens": 5100}
    apart, again = possible_usages(_report(5000, 2161, 2161, **told))
    assert (apart.uncached_tokens, again.uncached_tokens) == (678, 2839)
    for stated, expected in (
        *((price, apart) for price in (None, 0, 1, 10**9, _cost(call, apart))),
        (_cost(call, again), again),
    ):
        report = _report(5000, 2161, 2161, cost_picousd=stated, **told)
        assert read_usage(call, report) == expected


@each("where", ["price change", "backend"])
def test_the_stated_price_is_compared_with_all_prices_of_the_model(where: str) -> None:
    """The provider may charge by the prices of another day, or of another backend than the first."""
    now, later = (_call(prices).model for prices in (_CLAUDE, _GEMINI))
    if where == "price change":
        changes = (PriceChange(1_800_000_000, later.pricing),)
        model = replace(now, price_changes=changes)
    else:
        routes = (Route(now, 1, 1), Route(replace(later, backend="other"), 2, 1))
        model = replace(now, routes=routes)
    call = make_call(catalog_model=model)
    told = {"total_tokens": 5100}
    apart, again = possible_usages(_report(5000, 2161, 2161, **told))
    for pricing in (now.pricing, later.pricing):
        for expected in (apart, again):
            stated = sum(cost_of(pricing, expected, images=0).values())
            report = _report(5000, 2161, 2161, cost_picousd=stated, **told)
            assert read_usage(call, report) == expected


_counts = st.integers(0, 10_000)


@given(
    prompt=_counts,
    read=_counts,
    written=_counts,
    short=st.none() | _counts,
    long=st.none() | _counts,
    total=st.none() | _counts,
    audio=_counts,
    beside=st.sampled_from([None, False, True]),
    hour=st.booleans(),
)
def test_no_reading_has_a_negative_count(
    prompt: int,
    read: int,
    written: int,
    short: int | None,
    long: int | None,
    total: int | None,
    audio: int,
    beside: bool | None,
    hour: bool,
) -> None:
    report = _report(
        *(prompt, read, written),
        cache_write_5m_tokens=short,
        cache_write_1h_tokens=long,
        total_tokens=total,
        input_audio_tokens=audio,
        cache_adds_to_prompt=beside,
    )
    for usage in possible_usages(report, unnamed_is_1h=hour):
        assert usage.uncached_tokens >= usage.input_audio_tokens >= 0
        assert min(usage.cache_write_tokens, usage.cache_write_1h_tokens) >= 0
        assert usage.cache_write_tokens + usage.cache_write_1h_tokens == written
        assert sum(cost_of(_call(_CLAUDE).model.pricing, usage, images=0).values()) >= 0


_COUNTS = st.none() | st.integers(0, 3000)


@given(prompt=_COUNTS, completion=_COUNTS, total=_COUNTS, zero=st.none() | st.just(0))
def test_a_report_without_further_counts_has_one_meaning(
    prompt: int | None, completion: int | None, total: int | None, zero: int | None
) -> None:
    report = ReportedUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        cached_tokens=zero,
        reasoning_tokens=zero,
        service_tier="flex",
        prompt_details={"cached_tokens": zero},
    )
    usage = read_usage(_call(_CLAUDE), report)
    assert possible_usages(report) == ([] if usage is None else [usage])


def _message(*marks: dict[str, Any] | None) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": "Hello", **({} if mark is None else {"cache_control": mark})}
        for mark in marks
    ]
    return {"role": "user", "content": parts}


def _tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": {}}, **fields}


_ANSWERED = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    },
    {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "seen", "cache_control": _1H}],
    },
]
# The request, and whether its cache writes are charged at the price for one hour.
_ASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({"messages": [_message(None)]}, False),
    "five minutes": ({"messages": [_message(_5M, {**_5M, "ttl": "5m"})]}, False),
    "an hour": ({"messages": [_message(None, _1H)]}, True),
    "a lifetime that we do not know": ({"messages": [_message({**_5M, "ttl": "2h"})]}, True),
    "both": ({"messages": [_message(_5M), _message(_1H)]}, True),
    "an hour in a tool": ({"messages": [_message(_5M)], "tools": [_tool(cache_control=_1H)]}, True),
    "an hour in a function": (
        {
            "messages": [_message(None)],
            "tools": [_tool(function={"name": "look", "parameters": {}, "cache_control": _1H})],
        },
        True,
    ),
    "an hour in a tool's result": ({"messages": _ANSWERED, "tools": [_tool()]}, True),
    "a mark that is none": ({"messages": [_message("1h")]}, False),  # type: ignore[arg-type]
}


@each("asked", _ASKED)
def test_the_request_tells_the_lifetime_of_cache_writes(asked: str) -> None:
    fields, is_1h = _ASKED[asked]
    call = _call(_CLAUDE, **fields)
    usage = read_usage(call, _report(2000, 0, 1000))
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (
        (0, 1000) if is_1h else (1000, 0)
    )
    # A lifetime in the report has precedence over the request.
    split = _report(2000, 0, 1000, cache_write_5m_tokens=300, cache_write_1h_tokens=700)
    usage = read_usage(call, split)
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (300, 700)


@each(("caching", "is_1h"), [("5m", False), ("1h", True)])
def test_a_mark_of_the_gateway_tells_the_lifetime_too(caching: str, is_1h: bool) -> None:
    call = _call(_CLAUDE, caching)
    usage = read_usage(call, _report(2000, 0, 1000))
    assert usage is not None
    assert bool(usage.cache_write_1h_tokens) is is_1h
    # The client's cache marks replace the mark of the gateway.
    call = _call(_CLAUDE, caching, messages=[_message(_5M)])
    usage = read_usage(call, _report(2000, 0, 1000))
    assert usage is not None
    assert usage.cache_write_1h_tokens == 0


def test_an_hour_without_a_price_of_its_own_is_never_cheaper_than_five_minutes() -> None:
    prices = {name: price for name, price in _CLAUDE.items() if name != "input_cache_write_1h"}
    call = _call(prices, messages=[_message(_1H)])
    usage = read_usage(call, _report(1000, 0, 1000))
    assert _cost(call, usage) == 1000 * 3_750_000 + 100 * 15_000_000


def test_the_hold_covers_writes_for_an_hour() -> None:
    call = _call(_CLAUDE, messages=[_message(_1H)])
    usage = read_usage(call, _report(1000, 0, 1000))
    bounds = Bounds(prompt_tokens=1000, choices=1, output_tokens_each=100, images=0)
    assert hold_picousd(call.model.pricing, bounds) == _cost(call, usage)


@each("absurd_first", [False, True])
def test_a_last_report_that_cannot_be_true_is_not_replaced_by_our_own_count(
    absurd_first: bool,
) -> None:
    """The first report of a Messages stream has only the prompt's tokens, so it is not the last report."""
    absurd = {"input_tokens": 10, "output_tokens": -5}
    begun = ReportedUsage(
        prompt_tokens=10, reports_prompt_before_output=True, written={"input_tokens": 10}
    )
    reports = [UsageReport(begun), UsageReport(None, absurd)]
    meter = Meter(make_call(streamed=True), 10)
    meter.count([Delta(0, text="Hello"), *(reversed(reports) if absurd_first else reports)])
    assert meter.reported_impossible_usage
    assert meter.usage is None
    assert meter.reported == absurd


def test_a_usable_report_outweighs_one_that_cannot_be_true() -> None:
    whole = ReportedUsage(prompt_tokens=10, completion_tokens=1, written={"prompt_tokens": 10})
    meter = Meter(make_call(streamed=True), 10)
    meter.count([Delta(0, text="Hello"), UsageReport(whole), UsageReport(None, {"x": -1})])
    assert not meter.reported_impossible_usage
    assert meter.usage == Usage(10, 1)
    assert meter.reported == {"prompt_tokens": 10}
