"""Finds settings that are valid but probably a mistake, for `tollkeeper doctor`."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from urllib.parse import urlsplit

from tollkeeper.core.catalog import Feature
from tollkeeper.core.money import picousd_from_usd, usd_from_picousd
from tollkeeper.core.pricing import PRICE_DIMENSIONS
from tollkeeper.core.prompt import Sampling
from tollkeeper.setup.settings import BackendSettings, ModelSettings, PricesSettings, Settings
from tollkeeper.setup.settings.places import Place
from tollkeeper.setup.settings.wording import nearest

Warnings = Iterator[tuple[Place, str]]

# 1000 USD for a million tokens: probably meant for the million. The highest published price is 600
# USD.
_PICOUSD_PER_TOKEN_MAX = 10**9
_TOKEN_PRICES = tuple(dimension.name for dimension in PRICE_DIMENSIONS if dimension.per_token)
# By protocol.
_APPENDED_PATHS = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
_EVERY_ADDRESS = ("0.0.0.0", "::", "*")  # noqa: S104 - compared with settings, not listened on


def settings_warnings(settings: Settings) -> Warnings:
    """With an explanation each."""
    for model in settings.models:
        yield from _unknown_names(model)
        yield from _lengths(model)
        yield from _prices(model)
    for backend in settings.backends:
        for url in backend.urls:
            yield from _address(backend, url)
    yield from _listeners(settings)


def _unknown_names(model: ModelSettings) -> Warnings:
    names: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("supported_features", "feature", tuple(Feature), model.supported_features),
        (
            "supported_sampling_parameters",
            "sampling parameter",
            Sampling.__struct_fields__,
            model.supported_sampling_parameters,
        ),
    )
    for setting, kind, known, declared in names:
        for name in declared:
            if name not in known:
                words = (
                    f"{name!r} is not a {kind}{nearest(name, known)}; there are: {', '.join(known)}"
                )
                yield ("models", model.id, setting), words


def _lengths(model: ModelSettings) -> Warnings:
    if model.max_output_length > model.context_length:
        words = (
            f"{model.max_output_length} tokens of output do not fit into context_length = "
            f"{model.context_length}; lower it, or correct context_length"
        )
        yield ("models", model.id, "max_output_length"), words


def _prices(model: ModelSettings) -> Warnings:
    at: Place = ("models", model.id)
    if not model.pricing:
        yield (
            at,
            'it has no prices, so its calls are free; if that is right, set pricing.prompt = "0"',
        )
    declared: list[tuple[Place, Mapping[str, str]]] = [((*at, "pricing"), model.pricing)]
    declared += [
        ((*at, "price_tiers", place), tier.pricing) for place, tier in enumerate(model.price_tiers)
    ]
    later: tuple[tuple[str, tuple[PricesSettings, ...]], ...] = (
        ("price_changes", model.price_changes),
        ("alternatives", model.alternatives),
    )
    for name, owners in later:
        declared += [((*at, name, place), owner.pricing) for place, owner in enumerate(owners)]
    for place, pricing in declared:
        for name in _TOKEN_PRICES:
            price = picousd_from_usd(pricing.get(name, "0"))
            if price >= _PICOUSD_PER_TOKEN_MAX:
                per_million = usd_from_picousd(price * 10**6)
                words = (
                    f'{name} = "{pricing[name]}" is {per_million} USD for a million tokens; if it is '
                    f'the price of a million tokens, write "{pricing[name]}/M"'
                )
                yield place, words


def _address(backend: BackendSettings, url: str) -> Warnings:
    at: Place = ("backends", backend.name, "urls")
    path = urlsplit(url).path.rstrip("/")
    appended = _APPENDED_PATHS.get(backend.protocol, "")
    for known in filter(None, {appended, "/chat/completions"}):
        if path.endswith(known):
            yield at, f"{url}: remove {known}, because the gateway appends the path itself"
    if appended and not path:
        yield at, f"{url} has no path, but most servers need {url.rstrip('/')}/v1"


def _listeners(settings: Settings) -> Warnings:
    listeners = {name: getattr(settings, name) for name in ("server", "operator", "console")}
    for first, second in combinations(listeners, 2):
        one, other = listeners[first], listeners[second]
        hosts = {one.host, other.host}
        if one.port == other.port != 0 and (len(hosts) == 1 or hosts & {*_EVERY_ADDRESS}):
            yield (second, "port"), f"{first}.port is {one.port} too: one of them cannot listen"
    if settings.console.is_exposed:
        words = (
            f"{settings.console.host} is not loopback, so the console does not start: set "
            "console.tls_files, or console.trusted_proxies for a proxy that speaks HTTPS"
        )
        yield ("console", "host"), words
