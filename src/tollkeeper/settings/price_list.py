"""Compares the prices of the catalogue (the models in the settings) with the public prices of the
package genai-prices, which are exact decimals."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.domain.pricing import PRICE_DIMENSIONS
from tollkeeper.settings.places import SettingsError
from tollkeeper.settings.schema import ModelSettings, Settings

# Maps each price name in the list to the price dimension in the settings, and to the exponent of the
# number of units that a listed price covers: 10^6 tokens, or 10^3 requests or other units.
_PRICES: Final = {
    dimension.listed_as: (dimension.name, 6 if dimension.per_token else 3)
    for dimension in PRICE_DIMENSIONS
    if dimension.listed_as
}


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """Describes a setting of a model whose value differs from the value in the price list."""

    model: str
    # PROVIDER/MODEL in the price list.
    listed_as: str
    setting: str
    # The value in the catalogue, or None.
    declared: str | None
    # The value in the price list.
    listed: str
    # The reason why the listed value cannot be used, or empty.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PriceReview:
    differences: tuple[PriceDifference, ...]
    # Models of the catalogue that are not in the price list.
    unknown: tuple[str, ...]
    # The number of catalogue models that are in the price list.
    compared: int


def review(settings: Settings, names: Mapping[str, str]) -> PriceReview:
    """Compares all models of the catalogue. `names` maps a model to its PROVIDER/MODEL in the price
    list. All other models are looked up by the backend's address and `upstream_model`. Raises
    SettingsError if genai-prices is not installed."""
    try:
        prices = importlib.import_module("genai_prices.data")
        snapshots = importlib.import_module("genai_prices.data_snapshot")
    except ImportError:
        raise SettingsError("genai-prices is not installed; install tollkeeper[prices].") from None
    snapshot = snapshots.DataSnapshot(prices.providers, from_auto_update=False)
    urls = {backend.name: (*backend.urls, None)[0] for backend in settings.backends}
    differences: list[PriceDifference] = []
    unknown: list[str] = []
    for model in settings.models:
        provider, _, name = names.get(model.id, "").partition("/")
        try:
            provider_and_model = snapshot.find_provider_model(
                name or model.upstream_model,
                None,
                provider or None,
                None if provider else urls[model.backend],
            )
        except LookupError:
            unknown.append(model.id)
        else:
            differences += _differences(model, *provider_and_model)
    return PriceReview(tuple(differences), tuple(unknown), len(settings.models) - len(unknown))


def toml_text(price_review: PriceReview, models: tuple[ModelSettings, ...]) -> str:
    """Returns a TOML line `pricing` with the listed prices for each model whose prices differ. Operators
    can paste these lines into a settings file."""
    lines = ["# Prices from genai-prices, for review: put each line under its model in [[models]]."]
    for model in models:
        changed = {
            difference.setting.removeprefix("pricing."): difference.listed
            for difference in price_review.differences
            if difference.model == model.id
            and difference.setting.startswith("pricing.")
            and not difference.problem
        }
        if changed:
            prices: dict[str, str] = {**_declared(model), **changed}
            entries = ", ".join(f'{name} = "{price}"' for name, price in prices.items())
            lines += ["", f"# {model.id}", f"pricing = {{ {entries} }}"]
    return "\n".join(lines) + "\n"


def _differences(model: ModelSettings, provider: Any, listed: Any) -> Iterator[PriceDifference]:
    listed_as = f"{provider.id}/{listed.id}"
    prices = listed.get_prices(datetime.now(UTC))
    declared = _declared(model)
    for name, (dimension, exponent) in _PRICES.items():
        value: Any = getattr(prices, name, None)
        if value is None:
            continue
        # If a listed price has tiers, only its base price is compared. The tiers in the settings
        # (`price_tiers`) are not compared.
        tiered = not isinstance(value, Decimal)
        price = _plain((value.base if tiered else value).scaleb(-exponent))
        declared_value = declared.get(dimension)
        problem = _problem(price)
        if (
            problem
            or declared_value is None
            or picousd_from_usd(declared_value) != picousd_from_usd(price)
        ):
            problem = problem or ("" if not tiered else "The list has price tiers as well.")
            setting = f"pricing.{dimension}"
            yield PriceDifference(model.id, listed_as, setting, declared_value, price, problem)
    window = listed.context_window
    if window is not None and window != model.context_length:
        declared_value = str(model.context_length)
        yield PriceDifference(model.id, listed_as, "context_length", declared_value, str(window))


def _declared(model: ModelSettings) -> dict[str, str]:
    return {str(dimension): price for dimension, price in model.pricing.items()}


def _plain(value: Decimal) -> str:
    """Formats a decimal without an exponent."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _problem(price: str) -> str:
    try:
        picousd = picousd_from_usd(price)
    except InvalidRequest as exc:
        return exc.message
    return "A price cannot be negative." if picousd < 0 else ""
