"""Reads declared prices: decimal strings in USD, price tiers and service tiers.

A price tier has the prices of prompts above a length. A service tier multiplies the token prices. All prices
that may apply are computed in advance and never rounded: one that isn't a multiple of 10^-12 USD is rejected,
even if a multiplier makes it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import picousd_from_usd, usd_from_picousd
from tollkeeper.core.pricing import (
    PRICE_DIMENSIONS,
    PRICE_NAMES,
    PUBLIC_PRICES,
    PriceVariant,
    Pricing,
)

_TOKEN_PRICES = tuple(dimension.name for dimension in PRICE_DIMENSIONS if dimension.per_token)
# For a million tokens.
_PER_MILLION = "/M"
_MULTIPLIER = re.compile(r"(?P<whole>\d{1,6})(?:\.(?P<fraction>\d{1,9}))?", re.ASCII)
_SERVICE_TIER = re.compile(r"[!-~]{1,64}", re.ASCII)
# They have the declared prices without a multiplier.
_ORDINARY_TIERS = ("auto", "default")


@dataclass(frozen=True, slots=True)
class DeclaredTier:
    """For prompts with more tokens than `above_tokens`."""

    above_tokens: int
    prices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeclaredPrices:
    """From one price change to the next."""

    prices: Mapping[str, str]
    tiers: Sequence[DeclaredTier] = ()
    # Multipliers of token prices.
    service_tiers: Mapping[str, str] = field(default_factory=dict)
    # Of answers to requests that name none; "": not declared.
    unasked_service_tier: str = ""


def pricing_from_declared(declared: Mapping[str, str], *, param: str) -> Pricing:
    """A price that isn't declared is that of its fallback dimension, otherwise 0."""
    prices: dict[str, str] = {}
    amounts: dict[str, Any] = {}
    for dimension in PRICE_DIMENSIONS:
        name = dimension.name
        prices[name] = declared.get(name, prices.get(dimension.fallback, "0"))
        amounts[name] = read_price(prices[name], param=f"{param}.{name}")
    shown = {dimension: prices[dimension] for dimension in PUBLIC_PRICES}
    return Pricing(**amounts, declared=shown)


def decimal_price(name: str, declared: str) -> str:
    """Converts "2.5/M" to USD for one token, exactly. Any other price stays. Raises InvalidRequest."""
    if not declared.endswith(_PER_MILLION):
        return declared
    if name not in _TOKEN_PRICES:
        raise InvalidRequest(
            f"{declared[:40]!r} is for tokens, and {name} is not counted in tokens."
        )
    price, remainder = divmod(picousd_from_usd(declared.removesuffix(_PER_MILLION)), 10**6)
    if remainder:
        raise InvalidRequest(f"{declared} is finer than the unit of account, 10^-12 USD.")
    return usd_from_picousd(price)


def read_price(declared: str, *, param: str) -> int:
    """Raises InvalidRequest if it is negative or invalid."""
    price = picousd_from_usd(declared, param=param)
    if price < 0:
        raise InvalidRequest("A price cannot be negative.", param=param)
    return price


def pricing_with_variants(declared: DeclaredPrices, *, param: str = "") -> Pricing:
    """For all service tiers and prompt lengths. `param` is the prefix of the setting's name in errors."""
    base = pricing_from_declared(declared.prices, param=f"{param}pricing")
    tiers = _tiers(declared, f"{param}price_tiers")
    variants = [PriceVariant(None, from_tokens, prices) for from_tokens, prices in tiers]
    for name, multiplier in declared.service_tiers.items():
        setting = f"{param}service_tiers.{name}"
        _check_service_tier(name, setting)
        for from_tokens, prices in ((0, base), *tiers):
            multiplied = _multiplied(prices, multiplier, setting)
            variants.append(PriceVariant(name, from_tokens, multiplied))
    unasked = declared.unasked_service_tier
    if unasked and unasked != "default" and unasked not in declared.service_tiers:
        raise InvalidRequest(
            f"{unasked!r} is not declared in service_tiers.", param=f"{param}service_tiers.unasked"
        )
    return replace(base, variants=tuple(variants), unasked_service_tier=unasked or None)


def _tiers(declared: DeclaredPrices, setting: str) -> list[tuple[int, Pricing]]:
    """By minimum prompt length. A tier inherits the prices that aren't per token, unless it declares them."""
    inherited = {
        dimension: price
        for dimension, price in declared.prices.items()
        if dimension not in _TOKEN_PRICES
    }
    found: dict[int, Pricing] = {}
    for position, tier in enumerate(declared.tiers):
        missing = [
            dimension
            for dimension in _TOKEN_PRICES
            if dimension in declared.prices and dimension not in tier.prices
        ]
        if missing:
            raise InvalidRequest(
                f"The tier needs every price per token that the model has; {', '.join(missing)} "
                "is missing.",
                param=f"{setting}.{position}.pricing",
            )
        if tier.above_tokens + 1 in found:
            raise InvalidRequest(
                f"Two tiers begin above {tier.above_tokens} tokens.",
                param=f"{setting}.{position}.above_tokens",
            )
        found[tier.above_tokens + 1] = pricing_from_declared(
            {**inherited, **tier.prices}, param=f"{setting}.{position}.pricing"
        )
    return sorted(found.items())


def _check_service_tier(name: str, setting: str) -> None:
    if name in _ORDINARY_TIERS:
        raise InvalidRequest(
            f"The service tier {name!r} has the ordinary prices and cannot be declared.",
            param=setting,
        )
    if _SERVICE_TIER.fullmatch(name) is None:
        raise InvalidRequest("A service tier has 1 to 64 printable characters.", param=setting)


def _multiplied(prices: Pricing, multiplier: str, setting: str) -> Pricing:
    """Without rounding."""
    match = _MULTIPLIER.fullmatch(multiplier)
    if match is None:
        raise InvalidRequest(
            f'{multiplier[:40]!r} is not a multiplier: a decimal string such as "0.5".',
            param=setting,
        )
    fraction = match["fraction"] or ""
    numerator, denominator = int(match["whole"] + fraction), 10 ** len(fraction)
    amounts = {name: getattr(prices, name) for name in PRICE_NAMES}
    for dimension in _TOKEN_PRICES:
        price = amounts[dimension]
        amounts[dimension], remainder = divmod(price * numerator, denominator)
        if remainder:
            raise InvalidRequest(
                f"{multiplier} times the {dimension} price, {usd_from_picousd(price)} USD, is "
                "finer than the unit of account, 10^-12 USD.",
                param=setting,
            )
    return Pricing(**amounts, declared=prices.declared)
