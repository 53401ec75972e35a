"""Tests the prices of a model: the hold is never below the cost at any backend, and when a call may cost
more than its hold."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import MODEL
from tests.support.tables import each
from tollkeeper.core.catalog import Model, Route, TokenBounds
from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.pricing import Bounds, Pricing, cost_of, hold_picousd
from tollkeeper.core.routes import PricesInForce, prices_by_backend, shown_prices
from tollkeeper.core.usage import Usage

_amount = st.integers(0, 10**6)


@st.composite
def _prices(draw: st.DrawFn) -> Pricing:
    declared = {
        name: f"0.{draw(_amount):06d}"
        for name in ("prompt", "completion", "input_cache_read", "input_cache_write", "request")
    }
    return pricing_from_declared(declared, param="pricing")


@st.composite
def _models(draw: st.DrawFn) -> Model:
    found = draw(st.lists(_prices(), min_size=1, max_size=4))
    routes = tuple(
        Route(replace(MODEL, backend=f"b{number}", pricing=pricing), order=number, weight=1)
        for number, pricing in enumerate(found)
    )
    return replace(MODEL, pricing=found[0], routes=routes)


@given(_models(), st.integers(0, 5000), st.integers(1, 500), st.data())
def test_the_hold_covers_whoever_serves(
    model: Model, prompt: int, output: int, data: st.DataObject
) -> None:
    bounds = Bounds(prompt_tokens=prompt, choices=1, output_tokens_each=output, images=0)
    hold = hold_picousd(PricesInForce(model, 0).dearest(bounds), bounds)
    used = data.draw(st.integers(0, prompt))
    cached = data.draw(st.integers(0, used))
    usage = Usage(used, data.draw(st.integers(0, output)), cached)
    for pricing in prices_by_backend(model, 0).values():
        assert sum(cost_of(pricing, usage, 0).values()) <= hold


@given(_models())
def test_the_public_prices_are_the_dearest(model: Model) -> None:
    shown = pricing_from_declared(shown_prices(model, 0), param="pricing")
    for route in model.routes:
        assert shown.prompt >= route.model.pricing.prompt
        assert shown.completion >= route.model.pricing.completion
        assert shown.input_cache_read >= route.model.pricing.input_cache_read


def test_a_model_with_one_backend_has_its_own_prices() -> None:
    assert shown_prices(MODEL, 0) == MODEL.pricing.declared
    assert prices_by_backend(MODEL, 0) == {}
    assert MODEL.backends == (MODEL.backend,)


_SEARCHING = pricing_from_declared({"prompt": "2", "completion": "3", "web_search": "5"}, param="")
_USD = 10**12
_PLAIN = Bounds(9, 1, 7)
_SEARCHES = Bounds(9, 2, 7, web_searches=20, prompts=2)


@each(
    ("token_bounds", "bounds", "more_usd"),
    [
        # A backend that respects its limits costs at most the hold, whatever its context is.
        (TokenBounds(), _PLAIN, 0),
        (TokenBounds(), Bounds(9, 16, 7, prompts=16), 0),
        (TokenBounds(limits_searches=True), _SEARCHES, 0),
        # Nobody limits the searches: 40 for each prompt, and their results.
        (TokenBounds(), _SEARCHES, 5 * 60 + 2 * (2 * 1000 - 9)),
        (TokenBounds(web_search=0), _SEARCHES, 5 * 60),
        (TokenBounds(web_search=3), _SEARCHES, 5 * 60 + 2 * 60 * 3),
        (TokenBounds(web_search=900), _SEARCHES, 5 * 60 + 2 * (2 * 1000 - 9)),
        (TokenBounds(), Bounds(9, 2, 7, web_searches=90, prompts=2), 2 * (2 * 1000 - 9)),
        # A model that is declared to do more than it is asked to.
        (TokenBounds(unbounded=True), _PLAIN, 5 * 40 + 2 * (1000 - 9) + 3 * (50 - 7)),
        (
            TokenBounds(unbounded=True, limits_searches=True, web_search=0),
            _SEARCHES,
            5 * 60 + 2 * (2 * 1000 - 9) + 3 * 2 * (50 - 7),
        ),
        # Bounds beyond the model's own limits stay.
        (TokenBounds(unbounded=True), Bounds(5000, 1, 70), 5 * 40),
    ],
)
def test_a_call_may_exceed_its_hold_only_for_a_reason(
    token_bounds: TokenBounds, bounds: Bounds, more_usd: int
) -> None:
    model = replace(
        MODEL,
        pricing=_SEARCHING,
        token_bounds=token_bounds,
        context_length=1000,
        max_output_length=50,
    )
    prices = PricesInForce(model, 0)
    _, hold = prices.hold(bounds)
    assert prices.overage_max(bounds, hold) == more_usd * _USD
