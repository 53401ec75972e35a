"""A model's prices: by dimension (such as `prompt`), tiers for long prompts, service tiers and future
changes."""

from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tollkeeper.core.declared_prices import decimal_price
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.pricing import PRICE_NAMES
from tollkeeper.setup.settings.section import Section
from tollkeeper.setup.settings.wording import nearest


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
# Decimal strings in USD, or for a million tokens, such as "2.5/M".
Prices = Annotated[dict[PriceName, str], AfterValidator(_in_decimals)]
_TIERS_MAX = 16
_CHANGES_MAX = 100
_INVALID_TIME = "must be a date or a time, for example 2027-01-01 or 2027-01-01T00:00:00Z"


def _in_utc(value: Any) -> Any:
    """A date is its midnight in UTC. A time needs its zone."""
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
    # Above this, the tier's prices apply to the whole call.
    above_tokens: int = Field(ge=1, le=2**53)
    pricing: Prices


class PricesSettings(Section):
    """Valid at the same time, for a model or an alternative."""

    pricing: Prices = {}
    price_tiers: tuple[PriceTierSettings, ...] = Field(default=(), max_length=_TIERS_MAX)
    # By service tier that an answer can name: a multiplier of the prices per token. If a request names none,
    # the hold assumes the entry `unasked`, otherwise the most expensive tier.
    service_tiers: dict[str, str] = Field(default={}, max_length=_TIERS_MAX)


class PriceChangeSettings(PricesSettings):
    """From `valid_from` on they replace all earlier ones, tiers too."""

    valid_from: UtcTime


PriceChanges = Annotated[tuple[PriceChangeSettings, ...], Field(max_length=_CHANGES_MAX)]
