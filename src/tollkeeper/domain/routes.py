"""The prices of a model that several backends may serve (`catalog.Route`).

The hold is that of the dearest one, and so are the public prices; the bill is that of the one that
served. A model with a single backend has no routes.
"""

from tollkeeper.domain.catalog import Model, Pricing
from tollkeeper.domain.pricing import Bounds, hold_picousd

_PUBLIC_PRICES = ("prompt", "completion", "image", "request", "input_cache_read")


def prices_by_backend(model: Model, now: int) -> dict[str, Pricing]:
    """The prices of each backend that may serve the model at this time (Unix seconds)."""
    return {route.model.backend: route.model.pricing_at(now) for route in model.routes}


def dearest_pricing(model: Model, now: int, bounds: Bounds) -> Pricing:
    """The prices of the backend at which a call within the bounds costs most."""
    if not model.routes:
        return model.pricing_at(now)
    possible = prices_by_backend(model, now).values()
    return max(possible, key=lambda pricing: hold_picousd(pricing, bounds))


def shown_prices(model: Model, now: int) -> dict[str, str]:
    """The public prices, as decimal strings: of each dimension the dearest."""
    if not model.routes:
        return model.pricing_at(now).declared
    possible = list(prices_by_backend(model, now).values())
    shown = {}
    for dimension in _PUBLIC_PRICES:
        dearest = max(possible, key=lambda pricing: int(getattr(pricing, dimension)))
        shown[dimension] = dearest.declared[dimension]
    return shown
