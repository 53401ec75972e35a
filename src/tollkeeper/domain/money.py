"""Money as integers of 10^-12 USD. No float comes near it."""

import re

from tollkeeper.domain.errors import InvalidRequest

PICOUSD_PER_USD = 10**12
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>\d{1,15})(?:\.(?P<fraction>\d{1,30}))?", re.ASCII)
_FRACTION_DIGITS = 12
# Wide enough for a trillion dollars, and far inside NUMERIC(38).
PICOUSD_MAX = 10**15 * PICOUSD_PER_USD


def picousd_from_usd(text: str, *, param: str | None = None) -> int:
    """An exact amount from a decimal string; finer than the unit is refused, never rounded."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{text[:40]!r} is not a decimal amount in USD.", param=param)
    # Digits, not Decimal: its context would round an amount of more than 28 digits silently.
    fraction = (found["fraction"] or "").rstrip("0")
    if len(fraction) > _FRACTION_DIGITS:
        raise InvalidRequest(
            f"{text} USD is finer than the unit of account, 10^-12 USD.", param=param
        )
    picousd = int(found["whole"] + fraction.ljust(_FRACTION_DIGITS, "0"))
    return -picousd if found["sign"] else picousd


def usd_from_picousd(amount: int) -> str:
    """The exact decimal string without needless zeros: 0.06, 12, -0.5."""
    sign = "-" if amount < 0 else ""
    whole, fraction = divmod(abs(amount), PICOUSD_PER_USD)
    if fraction == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{fraction:012d}".rstrip("0")
