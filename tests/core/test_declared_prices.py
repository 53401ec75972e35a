"""Tests prices that depend on the call: they are exact or refused, and a cost never exceeds the hold."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.declared_prices import (
    DeclaredPrices,
    DeclaredTier,
    decimal_price,
    pricing_with_variants,
)
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.pricing import Bounds, Pricing, cost_of, dearest_prices, hold_picousd
from tollkeeper.core.usage import Usage, added

examples = settings(max_examples=200, derandomize=True, database=None)

BASE = {
    "prompt": "0.000002",
    "completion": "0.00001",
    "input_cache_read": "0.0000002",
    "request": "0.001",
    "web_search": "0.01",
}
LONG = {"prompt": "0.000004", "completion": "0.000015", "input_cache_read": "0.0000004"}
LONGER = {"prompt": "0.000008", "completion": "0.00002", "input_cache_read": "0.0000008"}
DECLARED = DeclaredPrices(
    prices=BASE,
    tiers=(DeclaredTier(400_000, LONGER), DeclaredTier(200_000, LONG)),
    service_tiers={"flex": "0.5", "priority": "2.5"},
)
PRICING = pricing_with_variants(DECLARED)


def charged(usage: Usage, pricing: Pricing = PRICING) -> str:
    return usd_from_picousd(sum(cost_of(pricing, usage, 0).values()))


@each(
    ("prompt", "cost"),
    [
        (200_000, "0.402"),
        (200_001, "0.802504"),
        (400_000, "1.6025"),
        (400_001, "3.203008"),
    ],
)
def test_a_longer_prompt_has_other_prices_for_the_whole_call(prompt: int, cost: str) -> None:
    assert charged(Usage(prompt, 100)) == cost


def test_caches_count_for_the_length_of_a_prompt() -> None:
    usage = Usage(200_001, 0, cached_tokens=200_000)
    assert charged(usage) == "0.081004"
    assert charged(msgspec.structs.replace(usage, prompt_tokens=200_000)) == "0.041"


def test_the_service_tier_of_the_answer_multiplies_prices_per_token() -> None:
    usage = Usage(1000, 100, web_searches=1)
    assert charged(usage) == "0.014"
    for tier, cost in (("flex", "0.0125"), ("priority", "0.0185"), ("scale", "0.014")):
        assert charged(msgspec.structs.replace(usage, service_tier=tier)) == cost


def test_one_service_tier_has_two_names() -> None:
    """OpenAI's tier `priority` is also called `fast`. An answer may contain either name."""
    for declared, named in (("priority", "fast"), ("fast", "priority")):
        prices = DeclaredPrices(BASE, service_tiers={"flex": "0.5", declared: "2.5"})
        pricing = pricing_with_variants(prices)
        assert charged(Usage(1000, 100, service_tier=named), pricing=pricing) == "0.0085"
        assert charged(Usage(1000, 100, service_tier=declared), pricing=pricing) == "0.0085"
        assert charged(Usage(1000, 100, service_tier="ultrafast"), pricing=pricing) == "0.004"
        # The hold of a request with this name uses the same prices.
        bounds = Bounds(1000, 1, 100, 0, service_tier=named)
        assert usd_from_picousd(hold_picousd(pricing, bounds)) == "0.0085"
    both = DeclaredPrices(BASE, service_tiers={"priority": "2", "fast": "3"})
    pricing = pricing_with_variants(both)
    assert charged(Usage(1000, 100, service_tier="priority"), pricing=pricing) == "0.007"
    assert charged(Usage(1000, 100, service_tier="fast"), pricing=pricing) == "0.01"


def test_service_tiers_apply_to_long_prompts_too() -> None:
    assert charged(Usage(300_000, 100, service_tier="flex")) == "0.60175"
    assert charged(Usage(300_000, 100, service_tier="priority")) == "3.00475"


def test_every_part_of_a_fan_out_has_its_own_prices() -> None:
    """Three prompts of 150,000 tokens do not count as one long prompt, and each answer has its own tier."""
    part = Usage(150_000, 10)
    parts = [part, msgspec.structs.replace(part, service_tier="flex"), Usage(200_001, 10)]
    separate = sum(sum(cost_of(PRICING, one, 0).values()) for one in parts)
    together = sum(cost_of(PRICING, added(parts), 0).values())
    assert together == separate - 2 * PRICING.request
    assert charged(added([part] * 3)) == "0.9013"


def test_audio_has_its_price_or_that_of_text() -> None:
    usage = Usage(100, 50, cached_tokens=20, input_audio_tokens=30, output_audio_tokens=40)
    cost = cost_of(PRICING, usage, 0)
    assert sum(cost.values()) == sum(cost_of(PRICING, Usage(100, 50, 20), 0).values())
    dear = DeclaredPrices({**BASE, "input_audio": "0.00004", "output_audio": "0.00008"})
    lines = cost_of(pricing_with_variants(dear), usage, 0)
    assert lines["input_audio"] == 30 * 40_000_000
    assert lines["output_audio"] == 40 * 80_000_000
    assert lines["prompt"] == 50 * 2_000_000
    assert lines["completion"] == 10 * 10_000_000


@each(
    ("declared", "param", "words"),
    [
        ({"prices": {"prompt": "-1"}}, "pricing.prompt", "negative"),
        (
            {"tiers": [DeclaredTier(5, {"prompt": "1"})]},
            "price_tiers.0.pricing",
            "completion, input_cache_read is missing",
        ),
        (
            {"tiers": [DeclaredTier(5, LONG), DeclaredTier(5, LONGER)]},
            "price_tiers.1.above_tokens",
            "Two tiers begin above 5 tokens",
        ),
        (
            {"tiers": [DeclaredTier(5, {**LONG, "image": "one"})]},
            "price_tiers.0.pricing.image",
            "not a decimal amount",
        ),
        ({"service_tiers": {"flex": "half"}}, "service_tiers.flex", "not a multiplier"),
        ({"service_tiers": {"flex": "-1"}}, "service_tiers.flex", "not a multiplier"),
        ({"service_tiers": {"auto": "1"}}, "service_tiers.auto", "cannot be declared"),
        ({"service_tiers": {"a b": "1"}}, "service_tiers.a b", "printable"),
        (
            {"prices": {"prompt": "0.000000000001"}, "service_tiers": {"flex": "0.5"}},
            "service_tiers.flex",
            "0.5 times the prompt price, 0.000000000001 USD, is finer",
        ),
        ({"unasked_service_tier": "flex"}, "service_tiers.unasked", "not declared"),
    ],
)
def test_what_cannot_be_a_price_is_refused(
    declared: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        pricing_with_variants(DeclaredPrices(**{"prices": BASE, **declared}), param="here.")
    assert caught.value.param == f"here.{param}"


def bounds(prompt_tokens: int, **fields: Any) -> Bounds:
    return Bounds(prompt_tokens, 1, 100, 0, **fields)


def test_a_hold_takes_the_dearest_that_may_apply() -> None:
    short, long = bounds(200_000), bounds(200_001)
    priority = "priority"
    assert dearest_prices(PRICING, short) == PRICING.applying(priority, 0)
    assert dearest_prices(PRICING, long) == PRICING.applying(priority, 200_001)
    # A request that names a service tier is served in this tier or at the ordinary prices.
    assert dearest_prices(PRICING, bounds(1, service_tier="flex")) == PRICING
    asked = bounds(1, service_tier=priority)
    assert dearest_prices(PRICING, asked) == PRICING.applying(priority, 0)
    # Two prompts of half the length do not count as one long prompt.
    assert dearest_prices(PRICING, bounds(200_002, prompts=2)) == PRICING.applying(priority, 0)


def test_a_hold_reckons_with_audio() -> None:
    dear = pricing_with_variants(
        DeclaredPrices({**BASE, "input_audio": "0.00004", "output_audio": "0.00008"})
    )
    audio = bounds(100, input_audio_tokens=30, output_audio_tokens_each=100)
    more = hold_picousd(dear, audio) - hold_picousd(dear, bounds(100))
    assert more == 30 * 38_000_000 + 100 * 70_000_000
    cheap = pricing_with_variants(DeclaredPrices({**BASE, "input_audio": "0.000001"}))
    assert hold_picousd(cheap, audio) == hold_picousd(cheap, bounds(100))


def test_images_in_answers_have_their_price_or_that_of_the_completion() -> None:
    usage = Usage(100, 50, output_image_tokens=40)
    assert sum(cost_of(PRICING, usage, 0).values()) == sum(
        cost_of(PRICING, Usage(100, 50), 0).values()
    )
    dear = pricing_with_variants(DeclaredPrices({**BASE, "output_image": "0.00006"}))
    lines = cost_of(dear, usage, 0)
    assert (lines["output_image"], lines["completion"]) == (40 * 60_000_000, 10 * 10_000_000)
    more = hold_picousd(dear, bounds(100, writes_images=True)) - hold_picousd(dear, bounds(100))
    assert more == 100 * 50_000_000


@each("unasked", ["default", "flex"])
def test_the_operator_may_know_the_tier_of_requests_that_name_none(unasked: str) -> None:
    declared = DeclaredPrices(
        DECLARED.prices, DECLARED.tiers, DECLARED.service_tiers, unasked_service_tier=unasked
    )
    pricing = pricing_with_variants(declared)
    assert dearest_prices(pricing, bounds(1)) == pricing
    asked = bounds(1, service_tier="priority")
    assert dearest_prices(pricing, asked) == pricing.applying("priority", 0)


cents = st.integers(0, 1000).map(lambda amount: f"{amount}.5")
TOKEN_PRICES = (
    *("prompt", "completion", "input_cache_read", "input_cache_write", "input_cache_write_1h"),
    *("input_audio", "output_audio", "output_image"),
)
token_prices = st.fixed_dictionaries(dict.fromkeys(TOKEN_PRICES, cents))
tiers = st.lists(
    st.builds(DeclaredTier, st.integers(1, 50), token_prices),
    max_size=3,
    unique_by=lambda tier: tier.above_tokens,
)
multipliers = st.sampled_from(("0", "0.5", "1", "2", "1.25"))
service_tiers = st.dictionaries(st.sampled_from(("flex", "priority")), multipliers)
limits = st.builds(
    Bounds,
    prompt_tokens=st.integers(0, 60),
    choices=st.just(1),
    output_tokens_each=st.integers(1, 40),
    images=st.integers(0, 3),
    web_searches=st.integers(0, 3),
    writes_images=st.booleans(),
    service_tier=st.sampled_from((None, "flex", "priority", "scale")),
)


@st.composite
def usages_within(draw: st.DrawFn, limit: Bounds) -> Usage:
    prompt = draw(st.integers(0, limit.prompt_tokens))
    completion = draw(st.integers(0, limit.output_tokens_each))
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    audio = draw(st.integers(0, min(limit.output_audio_tokens_each, completion)))
    tiers: tuple[str | None, ...] = ("flex", "priority", None, "other")
    if limit.service_tier is not None:
        tiers = (limit.service_tier, None, "other", "default")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        input_audio_tokens=draw(
            st.integers(0, min(limit.input_audio_tokens, prompt - cached - written))
        ),
        output_audio_tokens=audio,
        output_image_tokens=draw(st.integers(0, completion - audio)) if limit.writes_images else 0,
        web_searches=draw(st.integers(0, limit.web_searches)),
        service_tier=draw(st.sampled_from(tiers)),
    )


@examples
@given(token_prices, tiers, service_tiers, limits, st.integers(1, 4), st.data())
def test_the_hold_is_never_less_than_the_cost(
    prices: dict[str, str],
    tiers: list[DeclaredTier],
    service_tiers: dict[str, str],
    limit: Bounds,
    copies: int,
    data: st.DataObject,
) -> None:
    pricing = pricing_with_variants(
        DeclaredPrices({**prices, "request": "3", "image": "2"}, tiers, service_tiers)
    )
    limit = msgspec.structs.replace(
        limit,
        input_audio_tokens=data.draw(st.integers(0, limit.prompt_tokens)),
        output_audio_tokens_each=data.draw(st.integers(0, limit.output_tokens_each)),
    )
    parts = [data.draw(usages_within(limit)) for _ in range(copies)]
    together = msgspec.structs.replace(
        limit,
        prompt_tokens=copies * limit.prompt_tokens,
        choices=copies,
        images=copies * limit.images,
        web_searches=copies * limit.web_searches,
        input_audio_tokens=copies * limit.input_audio_tokens,
        prompts=copies,
    )
    usage = added(parts) if copies > 1 else parts[0]
    cost = cost_of(pricing, usage, together.images)
    assert 0 <= sum(cost.values()) <= hold_picousd(pricing, together)
    assert all(type(amount) is int for amount in cost.values())


@each(
    ("name", "declared", "per_token"),
    [
        ("prompt", "2.5/M", "0.0000025"),
        ("completion", "10/M", "0.00001"),
        ("input_cache_read", "0.25/M", "0.00000025"),
        ("input_cache_write_1h", "0.000001/M", "0.000000000001"),
        ("prompt", "0/M", "0"),
        ("request", "0.01", "0.01"),
        ("prompt", "2.50", "2.50"),
    ],
)
def test_a_price_for_a_million_tokens(name: str, declared: str, per_token: str) -> None:
    assert decimal_price(name, declared) == per_token


@each(
    ("name", "declared"),
    [
        ("request", "2.5/M"),
        ("web_search", "10/M"),
        ("prompt", "0.0000001/M"),
        ("prompt", "/M"),
        ("prompt", "2.5 /M"),
        ("prompt", "2,5/M"),
        ("prompt", "2.5/M/M"),
    ],
)
def test_what_cannot_be_a_price_for_a_million_tokens(name: str, declared: str) -> None:
    with pytest.raises(InvalidRequest):
        decimal_price(name, declared)
