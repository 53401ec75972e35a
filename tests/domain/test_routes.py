"""Tests the prices of a model with several backends: the hold is never below the cost at any backend."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import MODEL
from tollkeeper.domain.catalog import Model, Route
from tollkeeper.domain.declared_prices import pricing_from_declared
from tollkeeper.domain.pricing import Bounds, Pricing, cost_of, hold_picousd
from tollkeeper.domain.routes import PricesInForce, prices_by_backend, shown_prices
from tollkeeper.domain.usage import Usage

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
