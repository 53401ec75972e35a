"""Computes the values of the price columns in the reservation row of a hold (the amount reserved
before a call)."""

from functools import lru_cache
from typing import Any

from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.pricing import PRICE_NAMES, Pricing, dearest_prices
from tollkeeper.storage.price_columns import PRICE_COLUMNS

_CACHED_PRICES_MAX = 1024


def hold_prices(hold: Hold) -> dict[str, Any]:
    """Returns the prices with which the hold was computed, by column. If the answer may be charged at
    other prices, `price_variants` contains all possible prices. The caller must not change the
    result, because holds share it."""
    pricing, verdicts = hold.pricing, hold.verdicts_max
    if pricing.variants or hold.bounds.writes_images:
        columns = _columns(dearest_prices(pricing, hold.bounds), pricing)
    else:
        # Nearly all holds have a single set of prices, which is one object of the model catalogue.
        cached = _cache.get(id(pricing))
        if cached is None:
            if len(_cache) >= _CACHED_PRICES_MAX:
                _cache.clear()
            cached = _cache[id(pricing)] = (pricing, _columns(pricing, pricing))
        columns = cached[1]
    if verdicts:
        return {**columns, "price_verdict": hold.verdict_picousd, "verdicts_max": verdicts}
    return columns


# The keys are the `id()` of the prices, because hashing the prices is slow. Each entry references
# its prices. So no other object can get the same `id()` while the entry exists.
_cache: dict[int, tuple[Pricing, dict[str, Any]]] = {}


# Cached for prices with variants and for calls that write images, which `_cache` does not contain.
@lru_cache(maxsize=_CACHED_PRICES_MAX)
def _columns(dearest: Pricing, all_prices: Pricing) -> dict[str, Any]:
    columns: dict[str, Any] = {
        column: getattr(dearest, name) for column, name in PRICE_COLUMNS.items()
    }
    has_other_prices = bool(all_prices.variants) or dearest != all_prices
    columns["price_variants"] = _variants(all_prices) if has_other_prices else None
    return columns


def _variants(pricing: Pricing) -> list[dict[str, Any]]:
    ordinary = {"service_tier": None, "from_tokens": 0, **_amounts(pricing)}
    return [
        ordinary,
        *(
            {
                "service_tier": variant.service_tier,
                "from_tokens": variant.from_tokens,
                **_amounts(variant.prices),
            }
            for variant in pricing.variants
        ),
    ]


def _amounts(prices: Pricing) -> dict[str, str]:
    return {name: str(getattr(prices, name)) for name in PRICE_NAMES}
