"""The settings of a model's prices: dimensions, tiers, service tiers, changes that are declared ahead."""

from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tollkeeper.domain.pricing import PRICE_NAMES
from tollkeeper.settings.section import Section
from tollkeeper.settings.wording import nearest


def _is_price(name: str) -> str:
    if name not in PRICE_NAMES:
        raise ValueError(
            f"there is no such price{nearest(name, PRICE_NAMES)}; there are: {', '.join(PRICE_NAMES)}"
        )
    return name


PriceName = Annotated[str, AfterValidator(_is_price)]
_TIERS_MAX = 16
_CHANGES_MAX = 100
_NO_MOMENT = "must be a date or a time, for example 2027-01-01 or 2027-01-01T00:00:00Z"


def _in_utc(value: Any) -> Any:
    """A date is its first moment in UTC. A time has to say which time zone it means."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if len(value) > 10 else date.fromisoformat(value)
        except ValueError:
            raise ValueError(_NO_MOMENT) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("the time needs its offset to UTC, for example 2027-01-01T00:00:00Z")
        return value.astimezone(UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    raise ValueError(_NO_MOMENT)


Moment = Annotated[datetime, BeforeValidator(_in_utc)]


class PriceTierSettings(Section):
    # Where the whole input has more tokens, these prices apply to the whole call.
    above_tokens: int = Field(ge=1, le=2**53)
    pricing: dict[PriceName, str]


class PricesSettings(Section):
    """All prices of a model for one time."""

    pricing: dict[PriceName, str] = {}
    price_tiers: tuple[PriceTierSettings, ...] = Field(default=(), max_length=_TIERS_MAX)
    # Multipliers of the prices per token, by the service tier that an answer names. `unasked` names
    # the tier of requests that name none; without it: any of those that are declared.
    service_tiers: dict[str, str] = Field(default={}, max_length=_TIERS_MAX)


class PriceChangeSettings(PricesSettings):
    """Prices that replace all earlier ones from a moment on; nothing is taken over from them."""

    valid_from: Moment


PriceChanges = Annotated[tuple[PriceChangeSettings, ...], Field(max_length=_CHANGES_MAX)]
