"""Reads a public list of model prices and says where the catalogue differs from it.

The file is one JSON object: the name of each model and its prices in USD per token, as numbers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.settings.places import SettingsError
from tollkeeper.settings.schema import ModelSettings

_BYTES_MAX = 64 * 1024 * 1024
# A price of the list and the price dimension of the catalogue that it is.
_PRICES: Final = {
    "input_cost_per_token": "prompt",
    "output_cost_per_token": "completion",
    "cache_read_input_token_cost": "input_cache_read",
    "cache_creation_input_token_cost": "input_cache_write",
    "cache_creation_input_token_cost_above_1hr": "input_cache_write_1h",
    "input_cost_per_image": "image",
    "input_cost_per_request": "request",
}
_BOUNDS: Final = {"max_input_tokens": "context_length", "max_output_tokens": "max_output_length"}


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """A setting of a model that the list says something else of."""

    model: str
    # The name that the list has for the model.
    listed_as: str
    setting: str
    # None where the catalogue declares nothing.
    declared: str | None
    listed: str
    # Why the value cannot be taken over; empty where it can.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PriceReview:
    differences: tuple[PriceDifference, ...]
    # Models of the catalogue that the list does not have.
    unknown: tuple[str, ...]
    # How many models of the catalogue the list has.
    compared: int


def read_price_list(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise SettingsError(f"{path} is larger than {_BYTES_MAX} bytes.")
        # Prices are decimals: a float would change them.
        listed = json.loads(path.read_bytes(), parse_float=Decimal)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (ValueError, RecursionError) as exc:
        raise SettingsError(f"{path} is not JSON.") from exc
    if not isinstance(listed, dict):
        raise SettingsError(f"{path} must hold one object, with a name for each model.")
    return {name: entry for name, entry in listed.items() if isinstance(entry, dict)}


def review(
    models: tuple[ModelSettings, ...],
    listed: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
) -> PriceReview:
    """`names` says under which name the list has a model, where it is not the model's own."""
    differences: list[PriceDifference] = []
    unknown: list[str] = []
    for model in models:
        name = _listed_name(model, listed, names)
        if name is None:
            unknown.append(model.id)
        else:
            differences += _differences(model, name, listed[name])
    return PriceReview(tuple(differences), tuple(unknown), len(models) - len(unknown))


def toml_text(found: PriceReview, models: tuple[ModelSettings, ...]) -> str:
    """The `pricing` of each model that differs, with the list's prices, to paste into a settings
    file."""
    lines = ["# Prices from a list, for review: put each line under its model in [[models]]."]
    for model in models:
        changed = {
            one.setting.removeprefix("pricing."): one.listed
            for one in found.differences
            if one.model == model.id and one.setting.startswith("pricing.") and not one.problem
        }
        if changed:
            prices = _declared(model) | changed
            written = ", ".join(f'{name} = "{price}"' for name, price in prices.items())
            lines += ["", f"# {model.id}", f"pricing = {{ {written} }}"]
    return "\n".join(lines) + "\n"


def _listed_name(
    model: ModelSettings, listed: Mapping[str, Any], names: Mapping[str, str]
) -> str | None:
    if model.id in names:
        return names[model.id] if names[model.id] in listed else None
    candidates = (model.upstream_model, model.id, model.id.rpartition("/")[2])
    return next((name for name in candidates if name in listed), None)


def _differences(
    model: ModelSettings, name: str, entry: Mapping[str, Any]
) -> Iterator[PriceDifference]:
    for field, dimension in _PRICES.items():
        value = entry.get(field)
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            continue
        price = _plain(value)
        declared = _declared(model).get(dimension)
        problem = _problem(price)
        if problem or declared is None or picousd_from_usd(declared) != picousd_from_usd(price):
            setting = f"pricing.{dimension}"
            yield PriceDifference(model.id, name, setting, declared, price, problem)
    for field, setting in _BOUNDS.items():
        value = entry.get(field)
        declared_bound = getattr(model, setting)
        if isinstance(value, int) and not isinstance(value, bool) and value != declared_bound:
            yield PriceDifference(model.id, name, setting, str(declared_bound), str(value))


def _declared(model: ModelSettings) -> dict[str, str]:
    return {str(dimension): price for dimension, price in model.pricing.items()}


def _plain(value: int | Decimal) -> str:
    """A decimal without an exponent."""
    text = f"{Decimal(value):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _problem(price: str) -> str:
    try:
        picousd = picousd_from_usd(price)
    except InvalidRequest as exc:
        return exc.message
    return "A price cannot be negative." if picousd < 0 else ""
