"""Reads the price that a backend states for a call, in picousd (10⁻¹² USD). The ledger stores this
price next to the gateway's own price. Only the gateway's own price is charged."""

from decimal import Decimal, InvalidOperation

from tollkeeper.domain.prompt import FreeObject

_PICOUSD_PER_USD = 10**12
# xAI states its price in ticks.
_PICOUSD_PER_TICK = 100
# A higher stated price is ignored as impossible.
_USD_MAX = 10**9


def usd_in_picousd(value: object) -> int | None:
    """Converts a price in USD to picousd. Returns None if `value` cannot be a price."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        usd = Decimal(str(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    if not usd.is_finite() or not 0 <= usd <= _USD_MAX:
        return None
    return int(usd * _PICOUSD_PER_USD)


def stated_cost(reported: FreeObject) -> int | None:
    """Returns the price in a usage report, in picousd. `cost` is a number (OpenRouter), or an object
    with a total (Perplexity). If the operator has stored a provider's key at OpenRouter (`is_byok`),
    `cost` is only OpenRouter's fee, and the price is the sum of the fee and the provider's charge."""
    cost = reported.get("cost")
    stated = usd_in_picousd(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if reported.get("is_byok") is not True:
        return stated
    details = reported.get("cost_details")
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    provider_charge = usd_in_picousd(upstream)
    return None if stated is None or provider_charge is None else stated + provider_charge


def ticks_in_picousd(value: object) -> int | None:
    """Converts a price in ticks to picousd. Returns None if `value` cannot be a price."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    picousd = value * _PICOUSD_PER_TICK
    return picousd if picousd <= _USD_MAX * _PICOUSD_PER_USD else None
