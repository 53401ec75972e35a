"""Tests that the hold is an upper bound of the cost, and that both are exact integers."""

import dataclasses

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.core.pricing import Bounds, Pricing, cost_of, hold_picousd
from tollkeeper.core.usage import Usage
from tollkeeper.providers.chat.usage import read_chat_usage

examples = settings(max_examples=50, derandomize=True, database=None)

prices = st.integers(0, 10**6) | st.integers(0, 10**24)
pricings = st.builds(
    Pricing,
    prompt=prices,
    completion=prices,
    image=prices,
    request=prices,
    input_cache_read=prices,
    declared=st.just({}),
    input_cache_write=prices,
    input_cache_write_1h=prices,
    web_search=prices,
)
bounds = st.builds(
    Bounds,
    prompt_tokens=st.integers(0, 10**6),
    choices=st.integers(1, 128),
    output_tokens_each=st.integers(1, 999_990),
    images=st.integers(0, 20),
    web_searches=st.integers(0, 10),
)


@st.composite
def usages_within(draw: st.DrawFn, limit: Bounds) -> tuple[Usage, int]:
    prompt = draw(st.integers(0, limit.prompt_tokens))
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=draw(st.integers(0, limit.choices * limit.output_tokens_each)),
        cached_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=draw(st.integers(0, prompt - cached - written)),
        web_searches=draw(st.integers(0, limit.web_searches)),
    )
    return usage, draw(st.integers(0, limit.images))


def check_hold_bounds_cost(pricing: Pricing, limit: Bounds, usage: Usage, images: int) -> None:
    hold = hold_picousd(pricing, limit)
    cost = cost_of(pricing, usage, images)
    assert 0 <= sum(cost.values()) <= hold
    assert type(hold) is int
    assert all(type(amount) is int for amount in cost.values())


@examples
@given(pricings, bounds, st.data())
def test_the_hold_is_never_less_than_the_cost(
    pricing: Pricing, limit: Bounds, data: st.DataObject
) -> None:
    usage, images = data.draw(usages_within(limit))
    check_hold_bounds_cost(pricing, limit, usage, images)


@examples
@given(pricings, bounds)
def test_the_hold_is_reached(pricing: Pricing, limit: Bounds) -> None:
    """The hold is no higher than the cost of the most expensive call within the bounds."""
    prices = {
        "": pricing.prompt,
        "cached_tokens": pricing.input_cache_read,
        "cache_write_tokens": pricing.input_cache_write,
        "cache_write_1h_tokens": pricing.input_cache_write_1h,
    }
    bucket = max(prices, key=lambda name: prices[name])
    dearest = Usage(
        limit.prompt_tokens,
        limit.choices * limit.output_tokens_each,
        web_searches=limit.web_searches,
    )
    if bucket:
        dearest = msgspec.structs.replace(dearest, **{bucket: limit.prompt_tokens})
    assert sum(cost_of(pricing, dearest, limit.images).values()) == hold_picousd(pricing, limit)


def test_cost_has_a_line_for_each_dimension() -> None:
    pricing = Pricing(
        *(200, 800, 5000, 70, 20),
        declared={},
        input_cache_write=250,
        input_cache_write_1h=400,
        web_search=10_000,
    )
    usage = Usage(
        *(1000, 30, 400),
        cache_write_tokens=100,
        cache_write_1h_tokens=50,
        web_searches=3,
    )
    cost = cost_of(pricing, usage, images=2)
    assert cost == {
        "prompt": 450 * 200,
        "completion": 30 * 800,
        "input_cache_read": 400 * 20,
        "input_cache_write": 100 * 250 + 50 * 400,
        "web_search": 3 * 10_000,
        "image": 10_000,
        "request": 70,
    }
    assert sum(cost.values()) == 90_000 + 24_000 + 8_000 + 45_000 + 30_000 + 10_000 + 70


def test_a_price_that_is_not_declared_is_that_of_input() -> None:
    pricing = pricing_from_declared({"prompt": "0.000002", "completion": "0.000008"}, param="p")
    assert pricing.input_cache_read == pricing.input_cache_write == pricing.prompt == 2_000_000
    assert pricing.input_cache_write_1h == pricing.prompt
    assert pricing.declared["input_cache_read"] == "0.000002"
    dearer = pricing_from_declared({"prompt": "1", "input_cache_write": "2"}, param="p")
    assert dearer.input_cache_write_1h == dearer.input_cache_write == 2 * 10**12
    free = pricing_from_declared({"prompt": "1", "input_cache_read": "0"}, param="p")
    assert free.input_cache_read == 0


def test_the_largest_call_of_the_interface_is_exact() -> None:
    pricing = pricing_from_declared({"completion": "0.000000000001"}, param="pricing")
    assert hold_picousd(pricing, Bounds(0, 128, 999_990, 0)) == 127_998_720
    dearest = dataclasses.replace(pricing, completion=PICOUSD_MAX // 10**9)
    hold = hold_picousd(dearest, Bounds(0, 128, 999_990, 0))
    assert usd_from_picousd(hold) == "127998720000000"


@examples
@given(st.integers(-(2**70), -1), st.sampled_from(("prompt_tokens", "completion_tokens")))
def test_negative_usage_is_no_usage(count: int, field: str) -> None:
    check_negative_usage_is_refused(count, field)


def check_negative_usage_is_refused(count: int, field: str) -> None:
    reported = {"prompt_tokens": 5, "completion_tokens": 7, field: count}
    for report in (reported, {**reported, "total_tokens": sum(reported.values())}):
        assert read_chat_usage(report).usage is None
        assert read_chat_usage(report).impossible == report
