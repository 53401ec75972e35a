"""Compares the prices of the catalogue (the models in the settings) with the public prices of the
package genai-prices, which are exact decimals."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

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
_PER_TOKEN = frozenset(dimension.name for dimension in PRICE_DIMENSIONS if dimension.per_token)
_CONTEXT_LENGTH = "context_length"


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


# The prices of a model by dimension, for prompts with more tokens than the key. The key 0 has the ordinary
# prices, every other key a price tier.
_Prices: TypeAlias = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PriceReview:
    differences: tuple[PriceDifference, ...]
    # Models of the catalogue that are not in the price list.
    unknown: tuple[str, ...]
    # The listed prices of all other models, by the model's id.
    listed: Mapping[str, _Prices]


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
    all_listed: dict[str, _Prices] = {}
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
            all_listed[model.id] = _listed(provider_and_model[1])
    return PriceReview(tuple(differences), tuple(unknown), all_listed)


def toml_text(price_review: PriceReview, models: tuple[ModelSettings, ...]) -> str:
    """Returns the TOML lines `pricing` and `price_tiers` with the listed prices for each model whose
    prices differ. Operators can paste these lines into a settings file. Raises SettingsError if a price
    cannot be written, because a model that lacks a price would be free."""
    unusable = [
        f"{difference.model}: {difference.setting} is {difference.listed}. {difference.problem}"
        for difference in price_review.differences
        if difference.problem
    ]
    if unusable:
        raise SettingsError(
            f"Nothing was written, because these prices cannot be used: {' '.join(unusable)}"
        )
    lines = [
        "# Prices from genai-prices, for review: put these lines under their model in [[models]]."
    ]
    changed = {
        difference.model
        for difference in price_review.differences
        if difference.setting != _CONTEXT_LENGTH
    }
    for model in models:
        if model.id in changed:
            lines += ["", f"# {model.id}", *_lines(model, price_review.listed[model.id])]
    return "\n".join(lines) + "\n"


def _lines(model: ModelSettings, listed: _Prices) -> Iterator[str]:
    """Yields the settings with the listed prices, and with those declared prices that the list lacks."""
    declared = _declared(model)
    plain = {**declared[0], **listed[0]}
    yield f"pricing = {_inline_table(plain)}"
    tiers = [above for above in listed if above]
    if tiers:
        # A tier needs every price per token that the model has.
        per_token = {name: price for name, price in plain.items() if name in _PER_TOKEN}
        yield "price_tiers = ["
        for above in tiers:
            prices = {**per_token, **declared.get(above, {}), **listed[above]}
            yield f"    {{ above_tokens = {above}, pricing = {_inline_table(prices)} }},"
        yield "]"


def _inline_table(prices: Mapping[str, str]) -> str:
    pairs = ", ".join(f'{name} = "{price}"' for name, price in prices.items())
    return f"{{ {pairs} }}"


def _listed(listed: Any) -> _Prices:
    """Returns the present prices in the list. Each tier contains all prices that the list has for it."""
    prices = listed.get_prices(datetime.now(UTC))
    found: dict[int, dict[str, str]] = {0: {}}
    by_dimension: dict[str, list[tuple[int, str]]] = {}
    for name, (dimension, exponent) in _PRICES.items():
        value: Any = getattr(prices, name, None)
        if value is None:
            continue
        tiers = [] if isinstance(value, Decimal) else value.tiers
        base = value if isinstance(value, Decimal) else value.base
        by_dimension[dimension] = [
            (above, _plain(price.scaleb(-exponent)))
            for above, price in ((0, base), *((tier.start, tier.price) for tier in tiers))
        ]
    for above in sorted({above for steps in by_dimension.values() for above, _ in steps}):
        # The price of the last step that begins at this length or before. Prices that are not per token
        # are in a tier only if they depend on the length.
        found[above] = {
            dimension: [price for start, price in steps if start <= above][-1]
            for dimension, steps in by_dimension.items()
            if not above or dimension in _PER_TOKEN or len(steps) > 1
        }
    return found


def _differences(model: ModelSettings, provider: Any, listed: Any) -> Iterator[PriceDifference]:
    listed_as = f"{provider.id}/{listed.id}"
    declared = _declared(model)
    listed_prices = _listed(listed)
    for above, prices in listed_prices.items():
        section = f"price_tiers.{above}" if above else "pricing"
        for dimension, price in prices.items():
            declared_value = declared.get(above, {}).get(dimension)
            problem = _problem(price)
            if (
                problem
                or declared_value is None
                or picousd_from_usd(declared_value) != picousd_from_usd(price)
            ):
                setting = f"{section}.{dimension}"
                yield PriceDifference(model.id, listed_as, setting, declared_value, price, problem)
    for above in declared.keys() - listed_prices.keys():
        yield PriceDifference(model.id, listed_as, f"price_tiers.{above}", "declared", "none")
    window = listed.context_window
    if window is not None and window != model.context_length:
        declared_value = str(model.context_length)
        yield PriceDifference(model.id, listed_as, _CONTEXT_LENGTH, declared_value, str(window))


def _declared(model: ModelSettings) -> _Prices:
    tiers = {tier.above_tokens: tier.pricing for tier in model.price_tiers}
    return {0: model.pricing, **tiers}


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
