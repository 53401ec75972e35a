"""The prices of a model that several backends may serve (`catalog.Route`). Holds and public prices use the
most expensive one; the call is charged at those of the backend that answered."""

import math

from msgspec.structs import replace

from tollkeeper.core.catalog import Model
from tollkeeper.core.pricing import (
    PUBLIC_PRICES,
    Bounds,
    Pricing,
    dearest_prices,
    hold_at,
    hold_picousd,
)
from tollkeeper.core.prompt_size import WEB_SEARCHES_SEEN_MAX


def prices_by_backend(model: Model, now: int) -> dict[str, Pricing]:
    """At this time (Unix seconds). Empty for a model with one backend."""
    return {route.model.backend: route.model.pricing_at(now) for route in model.routes}


class PricesInForce:
    """Between two price changes."""

    __slots__ = ("_model", "_prices_differ", "_pricing", "by_backend", "since", "until")

    def __init__(self, model: Model, now: int) -> None:
        models = (model, *(route.model for route in model.routes))
        times = [change.valid_from for served in models for change in served.price_changes]
        # Of the last and the next change; infinite if there is none.
        self.since = max((time for time in times if time <= now), default=-math.inf)
        self.until = min((time for time in times if time > now), default=math.inf)
        self.by_backend = prices_by_backend(model, now)
        self._model = model
        self._pricing = model.pricing_at(now)
        # They depend on backend, prompt or answer.
        self._prices_differ = bool(model.routes or self._pricing.variants or model.writes_images)

    def dearest(self, bounds: Bounds) -> Pricing:
        if not self.by_backend:
            return self._pricing
        return max(self.by_backend.values(), key=lambda pricing: hold_picousd(pricing, bounds))

    def hold(self, bounds: Bounds) -> tuple[Pricing, int]:
        """With the prices of the most expensive backend."""
        pricing = prices = self._pricing
        if self._prices_differ:
            pricing = self.dearest(bounds)
            prices = dearest_prices(pricing, bounds)
        return pricing, hold_at(prices, bounds)

    def overage_max(self, bounds: Bounds, hold: int) -> int:
        """What a call within the bounds may cost beyond its hold, as far as there is a reason to expect it: 0
        if the backend respects its limits."""
        declared = self._model.token_bounds
        if declared.unbounded:
            return self.cost_max(bounds) - hold
        if not bounds.web_searches or declared.limits_searches:
            return 0
        # Nobody limits the searches, but the output limit applies.
        return self._cost(self._with_all_searches(bounds)) - hold

    def cost_max(self, bounds: Bounds) -> int:
        """By the declared limits of the model: a full context for each prompt, the longest output, and more
        searches than any known answer made. An answer may exceed `bounds`, but not these."""
        model = self._model
        output_each = max(bounds.output_tokens_each, model.max_output_length)
        prompt = max(bounds.prompt_tokens, bounds.prompts * model.context_length)
        limits = replace(
            self._with_all_searches(bounds),
            prompt_tokens=prompt,
            input_audio_tokens=prompt if bounds.input_audio_tokens else 0,
            output_tokens_each=output_each,
            output_audio_tokens_each=output_each if bounds.output_audio_tokens_each else 0,
        )
        return self._cost(limits)

    def _cost(self, bounds: Bounds) -> int:
        return hold_picousd(self.dearest(bounds), bounds)

    def _with_all_searches(self, bounds: Bounds) -> Bounds:
        """More searches than any known answer, whose results may fill each prompt's context."""
        searches = max(bounds.web_searches, bounds.prompts * WEB_SEARCHES_SEEN_MAX)
        context = bounds.prompts * self._model.context_length
        tokens_each = self._model.token_bounds.web_search
        results = context
        if tokens_each is not None:
            results = (searches - bounds.web_searches) * tokens_each
        prompt = max(bounds.prompt_tokens, min(bounds.prompt_tokens + results, context))
        return replace(bounds, prompt_tokens=prompt, web_searches=searches)


def shown_prices(model: Model, now: int) -> dict[str, str]:
    """The highest of any backend, as decimal strings."""
    if not model.routes:
        return model.pricing_at(now).declared
    possible = list(prices_by_backend(model, now).values())
    shown = {}
    for dimension in PUBLIC_PRICES:
        dearest = max(possible, key=lambda pricing: int(getattr(pricing, dimension)))
        shown[dimension] = dearest.declared[dimension]
    return shown
