"""Computes the price columns of a reservation whose call may be charged at several prices."""

from functools import lru_cache
from typing import Any

from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.pricing import PRICE_NAMES, Pricing, dearest_prices
from tollkeeper.storage.price_columns import PRICE_COLUMNS

_CACHED_PRICES_MAX = 1024


def has_own_prices(hold: Hold) -> bool:
    """Tells whether the prices with which the hold was computed depend on its bounds."""
    return bool(hold.pricing.variants or hold.bounds.writes_images)


def special_prices(hold: Hold) -> dict[str, Any]:
    """Returns the price columns that are not the prices of `hold.pricing`. If the answer may be
    charged at several prices, the columns contain the prices with which the hold was computed, and
    `price_variants` contains all possible prices."""
    if not has_own_prices(hold):
        return {}
    return _columns(dearest_prices(hold.pricing, hold.bounds), hold.pricing)


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
