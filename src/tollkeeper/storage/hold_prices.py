"""The prices of a hold, as its reservation keeps them."""

from functools import lru_cache
from typing import Any

from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.pricing import PRICE_NAMES, Pricing, dearest_prices
from tollkeeper.storage.price_columns import PRICE_COLUMNS

_KEPT_PRICES_MAX = 1024


def hold_prices(hold: Hold) -> dict[str, Any]:
    """The prices that the hold was computed with, and all those that its answer may have."""
    pricing, verdicts = hold.pricing, hold.verdicts_max
    if pricing.variants or hold.bounds.writes_images:
        columns = _columns(dearest_prices(pricing, hold.bounds), pricing)
    else:
        # Nearly all holds: there is one set of prices, and it is the catalogue's own object.
        kept = _kept.get(id(pricing))
        if kept is None or kept[0] is not pricing:
            if len(_kept) >= _KEPT_PRICES_MAX:
                _kept.clear()
            kept = _kept[id(pricing)] = (pricing, _columns(pricing, pricing))
        columns = kept[1]
    if verdicts:
        return {**columns, "price_verdict": hold.verdict_picousd, "verdicts_max": verdicts}
    return columns


# By the identity of the prices, which are kept with it: the hash of prices is slow.
_kept: dict[int, tuple[Pricing, dict[str, Any]]] = {}


# Holds of a model have the same prices until its prices change.
@lru_cache(maxsize=_KEPT_PRICES_MAX)
def _columns(dearest: Pricing, all_prices: Pricing) -> dict[str, Any]:
    columns: dict[str, Any] = {
        column: getattr(dearest, name) for column, name in PRICE_COLUMNS.items()
    }
    has_others = bool(all_prices.variants) or dearest != all_prices
    columns["price_variants"] = _variants(all_prices) if has_others else None
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
