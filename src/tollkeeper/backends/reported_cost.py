"""Reads a backend's own stated price in picousd. It is stored, not charged."""

from decimal import Decimal, InvalidOperation

from tollkeeper.domain.prompt import FreeObject

_PICOUSD_PER_USD = 10**12
# xAI states its price in ticks.
_PICOUSD_PER_TICK = 100
# A higher price cannot be true.
_USD_MAX = 10**9


def usd_in_picousd(found: object) -> int | None:
    """Returns the price in USD, or None if `found` cannot be a price."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        usd = Decimal(str(found) if isinstance(found, float) else found)
    except InvalidOperation:
        return None
    if not usd.is_finite() or not 0 <= usd <= _USD_MAX:
        return None
    return int(usd * _PICOUSD_PER_USD)


def stated_cost(reported: FreeObject) -> int | None:
    """Returns the price in a usage report: a number (OpenRouter), or the total of an object
    (Perplexity). If the operator uses the provider's key, OpenRouter states its fee, and separately
    the provider's charge."""
    cost = reported.get("cost")
    stated = usd_in_picousd(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if reported.get("is_byok") is not True:
        return stated
    details = reported.get("cost_details")
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    charged = usd_in_picousd(upstream)
    return None if stated is None or charged is None else stated + charged


def ticks_in_picousd(found: object) -> int | None:
    """Returns the price in ticks, or None if `found` cannot be a price."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        return None
    picousd = found * _PICOUSD_PER_TICK
    return picousd if picousd <= _USD_MAX * _PICOUSD_PER_USD else None
