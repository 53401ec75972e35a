"""Amounts in USD and counts, as all pages show them: $1,234.50 and 1,234."""

from decimal import Decimal, localcontext

from markupsafe import Markup

from tollkeeper.core import money
from tollkeeper.core.money import usd_from_picousd

# For a missing value.
DASH = "\u2013"
# The significant digits of an amount below one dollar, and the decimal places of other amounts.
_SHORT_DIGITS = 3
_DOLLAR_PLACES = 4


def exact_usd(picousd: int | None) -> str:
    return DASH if picousd is None else money.exact_usd(picousd)


def usd(picousd: int | None) -> Markup | str:
    """Formats an amount with up to four decimal places. An amount below one dollar gets three
    significant digits instead. If the amount is rounded, its tooltip shows the exact amount."""
    if picousd is None:
        return DASH
    exact = usd_from_picousd(picousd)
    dollars = Decimal(exact)
    places = _DOLLAR_PLACES if abs(dollars) >= 1 else _SHORT_DIGITS - 1 - dollars.adjusted()
    with localcontext(prec=40):
        short = f"{round(dollars, places) if dollars else dollars:f}"
    if Decimal(short) == dollars:
        return money.dollars(short)
    return Markup('<span title="{}">{}</span>').format(money.dollars(exact), money.dollars(short))


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"
