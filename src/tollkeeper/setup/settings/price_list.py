"""Compares the catalogue's prices with the public ones of the package genai-prices, which are exact
decimals."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.pricing import PRICE_DIMENSIONS
from tollkeeper.setup.settings.places import SettingsError
from tollkeeper.setup.settings.schema import ModelSettings, Settings

# Our dimension, and how many units a listed price covers, as a power of ten: a million tokens, a thousand
# requests or other units.
_PRICES: Final = {
    dimension.listed_as: (dimension.name, 6 if dimension.per_token else 3)
    for dimension in PRICE_DIMENSIONS
    if dimension.listed_as
}
_PER_TOKEN = frozenset(dimension.name for dimension in PRICE_DIMENSIONS if dimension.per_token)
_CONTEXT_LENGTH = "context_length"


@dataclass(frozen=True, slots=True)
class PriceDifference:
    model: str
    # PROVIDER/MODEL.
    listed_as: str
    setting: str
    # None: not in the catalogue.
    declared: str | None
    listed: str
    # Why it can't be used.
    problem: str = ""


# For prompts with more tokens than the key: 0 has the ordinary prices, others are tiers.
_Prices: TypeAlias = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PriceReview:
    differences: tuple[PriceDifference, ...]
    # Not in the price list.
    unknown: tuple[str, ...]
    # Of all others, by the model's id.
    listed: Mapping[str, _Prices]


def review(settings: Settings, names: Mapping[str, str]) -> PriceReview:
    """`names` gives a model's PROVIDER/MODEL; others are looked up by address and `upstream_model`. Raises
    SettingsError without genai-prices."""
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
    """`pricing` and `price_tiers` of the models that differ, to paste into a settings file. Raises
    SettingsError if a price can't be written, because without it the model would be free."""
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
    """Declared prices that the list lacks stay."""
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
    """Each tier has all prices that the list has for it."""
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
        # Of the last step up to this length. Prices that aren't per token are only in a tier if they depend
        # on the length.
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
    """Without an exponent."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _problem(price: str) -> str:
    try:
        picousd = picousd_from_usd(price)
    except InvalidRequest as exc:
        return exc.message
    return "A price cannot be negative." if picousd < 0 else ""
