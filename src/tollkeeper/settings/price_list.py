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

# For each name of a price in the list, the price dimension in the settings and the power of ten of the
# units that a listed price covers: a million tokens, or a thousand requests or other units.
_PRICES: Final = {
    dimension.listed_as: (dimension.name, 6 if dimension.per_token else 3)
    for dimension in PRICE_DIMENSIONS
    if dimension.listed_as
}


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """Describes a setting of a model that has another value in the price list."""

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
    """Compares all models of the catalogue. A model is looked up in the price list by the PROVIDER/MODEL
    in `names`, otherwise by its backend's address and its `upstream_model`. Raises SettingsError if
    genai-prices is not installed."""
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
            found = snapshot.find_provider_model(
                name or model.upstream_model,
                None,
                provider or None,
                None if provider else urls[model.backend],
            )
        except LookupError:
            unknown.append(model.id)
        else:
            differences += _differences(model, *found)
    return PriceReview(tuple(differences), tuple(unknown), len(settings.models) - len(unknown))


def toml_text(found: PriceReview, models: tuple[ModelSettings, ...]) -> str:
    """Returns a setting `pricing` with the listed prices for each model whose prices differ. Operators
    can paste it into a settings file."""
    lines = ["# Prices from genai-prices, for review: put each line under its model in [[models]]."]
    for model in models:
        changed = {
            difference.setting.removeprefix("pricing."): difference.listed
            for difference in found.differences
            if difference.model == model.id
            and difference.setting.startswith("pricing.")
            and not difference.problem
        }
        if changed:
            prices: dict[str, str] = {**_declared(model), **changed}
            written = ", ".join(f'{name} = "{price}"' for name, price in prices.items())
            lines += ["", f"# {model.id}", f"pricing = {{ {written} }}"]
    return "\n".join(lines) + "\n"


def _differences(model: ModelSettings, provider: Any, listed: Any) -> Iterator[PriceDifference]:
    listed_as = f"{provider.id}/{listed.id}"
    prices = listed.get_prices(datetime.now(UTC))
    declared = _declared(model)
    for name, (dimension, exponent) in _PRICES.items():
        value: Any = getattr(prices, name, None)
        if value is None:
            continue
        # Of a price with tiers, only the base price is compared with `pricing`. The settings have tiers
        # in `price_tiers`, which are not compared.
        tiered = not isinstance(value, Decimal)
        price = _plain((value.base if tiered else value).scaleb(-exponent))
        present = declared.get(dimension)
        problem = _problem(price)
        if problem or present is None or picousd_from_usd(present) != picousd_from_usd(price):
            problem = problem or ("" if not tiered else "The list has price tiers as well.")
            setting = f"pricing.{dimension}"
            yield PriceDifference(model.id, listed_as, setting, present, price, problem)
    window = listed.context_window
    if window is not None and window != model.context_length:
        present = str(model.context_length)
        yield PriceDifference(model.id, listed_as, "context_length", present, str(window))


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
