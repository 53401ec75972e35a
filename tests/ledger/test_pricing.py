"""The hold is an upper bound of the cost, exact to the last unit and without floats."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tollkeeper.domain.catalog import PRICE_DIMENSIONS, Pricing, pricing_from_declared
from tollkeeper.domain.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.domain.pricing import Bounds, Cost, cost_of, hold_picousd
from tollkeeper.domain.usage import Usage, read_usage

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
)
bounds = st.builds(
    Bounds,
    prompt_tokens=st.integers(0, 10**6),
    choices=st.integers(1, 128),
    output_tokens_each=st.integers(1, 999_990),
    images=st.integers(0, 20),
)


@st.composite
def usages_within(draw: st.DrawFn, limit: Bounds) -> tuple[Usage, int]:
    prompt = draw(st.integers(0, limit.prompt_tokens))
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=draw(st.integers(0, limit.choices * limit.output_tokens_each)),
        cached_tokens=draw(st.integers(0, prompt)),
    )
    return usage, draw(st.integers(0, limit.images))


def check_hold_bounds_cost(pricing: Pricing, limit: Bounds, usage: Usage, images: int) -> None:
    hold = hold_picousd(pricing, limit)
    cost = cost_of(pricing, usage, images)
    assert 0 <= cost.total_picousd <= hold
    assert type(hold) is int
    assert all(type(amount) is int for amount in cost.by_dimension.values())


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
    """The hold is no more than the most expensive call within the bounds costs."""
    cached = limit.prompt_tokens if pricing.input_cache_read > pricing.prompt else 0
    dearest = Usage(limit.prompt_tokens, limit.choices * limit.output_tokens_each, cached)
    assert cost_of(pricing, dearest, limit.images).total_picousd == hold_picousd(pricing, limit)


def test_cost_has_a_line_for_each_dimension() -> None:
    pricing = Pricing(
        prompt=200, completion=800, image=5000, request=70, input_cache_read=20, declared={}
    )
    cost = cost_of(pricing, Usage(1000, 30, cached_tokens=400), images=2)
    assert cost == Cost(
        {
            "prompt": 600 * 200,
            "completion": 30 * 800,
            "input_cache_read": 400 * 20,
            "image": 10_000,
            "request": 70,
        }
    )
    assert set(cost.by_dimension) == set(PRICE_DIMENSIONS)
    assert cost.total_picousd == 120_000 + 24_000 + 8_000 + 10_000 + 70


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
    assert read_usage(reported) is None
    assert read_usage({**reported, "total_tokens": sum(reported.values())}) is None
