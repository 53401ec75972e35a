"""Defines the price settings of a model: prices by dimension (such as `prompt`), tiers for long prompts,
service tiers and future changes."""

from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tollkeeper.domain.declared_prices import decimal_price
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.pricing import PRICE_NAMES
from tollkeeper.settings.section import Section
from tollkeeper.settings.wording import nearest


def _is_price_name(name: str) -> str:
    if name not in PRICE_NAMES:
        raise ValueError(
            f"there is no such price{nearest(name, PRICE_NAMES)}; there are: {', '.join(PRICE_NAMES)}"
        )
    return name


def _in_decimals(pricing: dict[str, str]) -> dict[str, str]:
    prices = {}
    for name, declared in pricing.items():
        try:
            prices[name] = decimal_price(name, declared)
        except InvalidRequest as exc:
            raise ValueError(f"{name}: {exc}") from None
    return prices


PriceName = Annotated[str, AfterValidator(_is_price_name)]
# Decimal strings in USD. The file may also have prices for a million tokens, such as "2.5/M".
Prices = Annotated[dict[PriceName, str], AfterValidator(_in_decimals)]
_TIERS_MAX = 16
_CHANGES_MAX = 100
_INVALID_TIME = "must be a date or a time, for example 2027-01-01 or 2027-01-01T00:00:00Z"


def _in_utc(value: Any) -> Any:
    """Converts a date to its midnight in UTC. A time must contain its time zone."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if len(value) > 10 else date.fromisoformat(value)
        except ValueError:
            raise ValueError(_INVALID_TIME) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("the time needs its offset to UTC, for example 2027-01-01T00:00:00Z")
        return value.astimezone(UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    raise ValueError(_INVALID_TIME)


UtcTime = Annotated[datetime, BeforeValidator(_in_utc)]


class PriceTierSettings(Section):
    # If the whole input has more tokens than this, the prices of the tier apply to the whole call.
    above_tokens: int = Field(ge=1, le=2**53)
    pricing: Prices


class PricesSettings(Section):
    """Contains all prices of a model or of an alternative that are valid at the same time."""

    pricing: Prices = {}
    price_tiers: tuple[PriceTierSettings, ...] = Field(default=(), max_length=_TIERS_MAX)
    # Maps each service tier that an answer can name to the multiplier of the prices per token. If a
    # request names no tier, the hold (the amount reserved before a call) assumes the tier that the
    # entry `unasked` names. Without `unasked`, the hold assumes the most expensive tier.
    service_tiers: dict[str, str] = Field(default={}, max_length=_TIERS_MAX)


class PriceChangeSettings(PricesSettings):
    """Contains prices that replace all earlier prices, including price tiers and service tiers, from the
    time `valid_from` on."""

    valid_from: UtcTime


PriceChanges = Annotated[tuple[PriceChangeSettings, ...], Field(max_length=_CHANGES_MAX)]
