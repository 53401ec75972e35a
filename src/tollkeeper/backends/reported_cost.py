"""The price that a backend states itself, in picousd. It is kept, not charged."""

from decimal import Decimal, InvalidOperation

_PICOUSD_PER_USD = 10**12
# xAI states its price in ticks.
_PICOUSD_PER_TICK = 100
_USD_MAX = 10**9


def usd_in_picousd(found: object) -> int | None:
    """A price in USD, as OpenRouter and Perplexity state it; None where it is none."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        usd = Decimal(str(found))
    except InvalidOperation:
        return None
    if not usd.is_finite() or not 0 <= usd <= _USD_MAX:
        return None
    return int(usd * _PICOUSD_PER_USD)


def ticks_in_picousd(found: object) -> int | None:
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        return None
    return found * _PICOUSD_PER_TICK
