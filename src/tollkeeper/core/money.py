"""Decimal strings in USD and picousd (10^-12 USD), without floats."""

import re
from collections.abc import Iterable, Iterator
from itertools import repeat

from tollkeeper.core.errors import InvalidRequest

PICOUSD_PER_USD = 10**12
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>\d{1,15})(?:\.(?P<fraction>\d{1,30}))?", re.ASCII)
_TOO_LARGE = re.compile(r"-?\d{16,}(?:\.\d+)?", re.ASCII)
_FRACTION_DIGITS = 12
# 10^15 USD fits into NUMERIC(38).
PICOUSD_MAX = 10**15 * PICOUSD_PER_USD


def picousd_from_usd(text: str, *, param: str | None = None) -> int:
    """Exact. Raises InvalidRequest for no valid amount, or more than 12 decimal places."""
    match = _DECIMAL.fullmatch(text)
    if match is None and _TOO_LARGE.fullmatch(text):
        raise InvalidRequest(
            f"{text[:40]} USD is too large: amounts have at most 15 digits before the point.",
            param=param,
        )
    if match is None:
        raise InvalidRequest(f"{text[:40]!r} is not a decimal amount in USD.", param=param)
    # `Decimal`'s context silently rounds to 28 digits.
    fraction = (match["fraction"] or "").rstrip("0")
    if len(fraction) > _FRACTION_DIGITS:
        raise InvalidRequest(
            f"{text} USD is finer than the unit of account, 10^-12 USD.", param=param
        )
    picousd = int(match["whole"] + fraction.ljust(_FRACTION_DIGITS, "0"))
    return -picousd if match["sign"] else picousd


def usd_from_picousd(amount: int) -> str:
    """Exact, without trailing zeros: 0.06, 12, -0.5."""
    if amount < 0:
        return "-" + usd_from_picousd(-amount)
    return next(usd_texts((amount,)))


def usd_texts(amounts: Iterable[int]) -> Iterator[str]:
    """Like `usd_from_picousd`, for amounts that aren't negative. The loop runs in C."""
    texts = map("%d.%012d".__mod__, map(divmod, amounts, repeat(PICOUSD_PER_USD)))
    return map(str.rstrip, map(str.rstrip, texts, repeat("0")), repeat("."))


def exact_usd(picousd: int) -> str:
    """As people read it: -$1,234.50."""
    return dollars(usd_from_picousd(picousd))


def dollars(usd: str) -> str:
    """With two decimal places or more, so that equal amounts look equal. Zero is $0."""
    whole, _, fraction = usd.lstrip("-").partition(".")
    fraction = fraction.rstrip("0").ljust(2, "0")
    shown = f"{int(whole):,}.{fraction}" if int(whole) or int(fraction) else "0"
    return f"{'-' if usd.startswith('-') else ''}${shown}"
