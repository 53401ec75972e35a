"""Builds the model catalogue from the settings."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tollkeeper.core.catalog import (
    DEFAULT_TOKEN_BOUNDS,
    Catalog,
    Feature,
    Model,
    Route,
    TokenBounds,
)
from tollkeeper.core.declared_prices import (
    DeclaredPrices,
    DeclaredTier,
    pricing_with_variants,
    read_price,
)
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.inference import OUTPUT_MODALITIES
from tollkeeper.core.messages_behavior import MessagesBehavior, ThinkingStyle
from tollkeeper.core.pricing import PriceChange, Pricing
from tollkeeper.providers.anthropic import request as messages
from tollkeeper.providers.claude_thinking import OPTIONS as THINKING_OPTIONS
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.converse import request as converse
from tollkeeper.providers.gemini import request as gemini
from tollkeeper.providers.gemini.thinking import OPTIONS as GEMINI_THINKING_OPTIONS
from tollkeeper.providers.presets import (
    BILLED_TO_END,
    PRESETS,
    Preset,
    hidden_prompt_tokens,
    reasons_unasked,
    thinks_by_budget,
    unrequested_searches_max,
)
from tollkeeper.providers.request_fields import ENCRYPTED_REASONING
from tollkeeper.providers.responses import request as responses
from tollkeeper.setup.embedded.packaged_model import ENGINE_SCHEMA_BOUNDS
from tollkeeper.setup.settings import (
    AlternativeSettings,
    BackendSettings,
    ModelSettings,
    PricesSettings,
    Settings,
    SettingsError,
    built_from,
)

# Their providers charge for the whole prompt again after each search.
_PROMPT_CHARGED_PER_SEARCH = frozenset(
    {WireProtocol.MESSAGES, WireProtocol.VERTEX_MESSAGES, WireProtocol.RESPONSES}
)
_MESSAGES_PROTOCOLS = frozenset(
    {WireProtocol.MESSAGES, WireProtocol.VERTEX_MESSAGES, WireProtocol.BEDROCK_MESSAGES}
)
_GOOGLE_PROTOCOLS = frozenset({WireProtocol.GEMINI, WireProtocol.VERTEX_GEMINI})
# Each accepts encrypted reasoning that came over another.
_CLAUDE_PROTOCOLS = _MESSAGES_PROTOCOLS


def build_catalog(settings: Settings) -> Catalog:
    backends = {backend.name: backend for backend in settings.backends}
    models = []
    for declared in settings.models:
        on_backends = [_on_backend(declared, backends[declared.backend])]
        on_backends += [
            _on_backend(_on_alternative(declared, alternative), backends[alternative.backend])
            for alternative in declared.alternatives
        ]
        models.append(_combined(declared, on_backends, backends))
    return Catalog(tuple(models))


def _on_alternative(declared: ModelSettings, alternative: AlternativeSettings) -> ModelSettings:
    changes: dict[str, Any] = {"backend": alternative.backend}
    if alternative.upstream_model:
        changes["upstream_model"] = alternative.upstream_model
    if alternative.pricing:
        changes |= {name: getattr(alternative, name) for name in PricesSettings.model_fields}
        # They don't apply to an alternative with prices of its own.
        changes["price_changes"] = ()
    return declared.model_copy(update=changes)


def _on_backend(declared: ModelSettings, backend: BackendSettings) -> Model:
    model = _model(declared, backend)
    if backend.kind == "embedded":
        return replace(model, schema_bounds=ENGINE_SCHEMA_BOUNDS)
    return _on_protocol(model, backend.protocol)


def _on_protocol(model: Model, protocol: WireProtocol) -> Model:
    """Without what the protocol has no field for, and with the protocol's options."""
    reasons = Feature.REASONING in model.supported_features
    thinking = THINKING_OPTIONS if reasons else {}
    match protocol:
        case WireProtocol.RESPONSES:
            return _on_responses_backend(model)
        case WireProtocol.MESSAGES | WireProtocol.VERTEX_MESSAGES:
            return _with_protocol(model, messages, messages.FEATURES, thinking)
        case WireProtocol.BEDROCK_MESSAGES:
            without_search = messages.FEATURES - {Feature.WEB_SEARCH}
            return _with_protocol(model, messages, without_search, thinking)
        case WireProtocol.GEMINI | WireProtocol.VERTEX_GEMINI:
            gemini_thinking = GEMINI_THINKING_OPTIONS if reasons else {}
            return _with_protocol(
                model, gemini, gemini.FEATURES, {**gemini.OPTIONS, **gemini_thinking}
            )
        case WireProtocol.CONVERSE:
            options = {**converse.OPTIONS, **thinking}
            return _with_protocol(model, converse, converse.FEATURES, options)
    return model


class _ProtocolCapabilities(Protocol):
    """Of a protocol; the modules that encode requests have them."""

    SAMPLING_PARAMETERS: frozenset[str]
    INPUT_MODALITIES: frozenset[str]
    OUTPUT_MODALITIES: frozenset[str]


def _with_protocol(
    model: Model,
    protocol: _ProtocolCapabilities,
    features: frozenset[Feature],
    options: Mapping[str, str],
) -> Model:
    """For protocols whose messages are lists of blocks (`providers/conversation.py`)."""
    return replace(
        model,
        supported_sampling_parameters=_narrowed(
            model.supported_sampling_parameters, protocol.SAMPLING_PARAMETERS
        ),
        supported_features=_narrowed(model.supported_features, features),
        input_modalities=_narrowed(model.input_modalities, protocol.INPUT_MODALITIES),
        output_modalities=_narrowed(model.output_modalities, protocol.OUTPUT_MODALITIES),
        options={**options, **model.options},
        joins_turns=True,
    )


def _narrowed(declared: Iterable[str], supported: Collection[str]) -> tuple[str, ...]:
    """In the declared order."""
    return tuple(name for name in declared if name in supported)


def _on_responses_backend(model: Model) -> Model:
    """Without what the protocol has no field for, and with its options."""
    return replace(
        model,
        supported_sampling_parameters=_narrowed(
            model.supported_sampling_parameters, responses.SAMPLING_PARAMETERS
        ),
        input_modalities=_narrowed(model.input_modalities, responses.INPUT_MODALITIES),
        output_modalities=_narrowed(model.output_modalities, responses.OUTPUT_MODALITIES),
        options={**responses.OPTIONS, **model.options},
    )


def _model(declared: ModelSettings, backend: BackendSettings) -> Model:
    try:
        pricing, price_changes = _pricing(declared), _price_changes(declared)
        tool_prices = {
            name: read_price(price, param=f"tool_prices.{name}")
            for name, price in declared.tool_prices.items()
        }
    except InvalidRequest as exc:
        setting = (int(part) if part.isdecimal() else part for part in (exc.param or "").split("."))
        raise SettingsError(exc.message, ("models", declared.id, *setting)) from None
    protocol = backend.protocol
    preset, bounds = PRESETS.get(backend.preset, Preset()), declared.token_bounds
    by_budget = thinks_by_budget(declared.upstream_model)
    searches = bounds.searches
    if searches is None:
        searches = unrequested_searches_max(declared.upstream_model)
    hidden_prompt = bounds.hidden_prompt
    if hidden_prompt is None:
        hidden_prompt = hidden_prompt_tokens(declared.upstream_model, preset)
    return built_from(
        declared,
        Model,
        output_modalities=_narrowed(declared.output_modalities, OUTPUT_MODALITIES),
        pricing=pricing,
        price_changes=price_changes,
        tool_prices=tool_prices,
        cache_salt_field=backend.cache_salt_field,
        allows_remote_media=backend.allow_remote_media,
        reasons=Feature.REASONING in declared.supported_features
        or reasons_unasked(declared.upstream_model),
        token_bounds=TokenBounds(
            image=_tokens_per_image(bounds.image, preset),
            file=bounds.file or None,
            audio=bounds.audio or None,
            video=bounds.video or None,
            # Google doesn't charge for them.
            web_search=bounds.web_search or (0 if protocol in _GOOGLE_PROTOCOLS else None),
            unrequested_searches_max=searches,
            unbounded=searches > 0 if bounds.unbounded is None else bounds.unbounded,
            # Their wires send the number that the hold covers.
            limits_searches=protocol in _MESSAGES_PROTOCOLS,
            search_rereads_prompt=protocol in _PROMPT_CHARGED_PER_SEARCH,
            text_by_bytes=bounds.text == "bytes",
            template=DEFAULT_TOKEN_BOUNDS.template + hidden_prompt,
        ),
        messages=MessagesBehavior(
            caching=declared.prompt_caching,
            thinking=ThinkingStyle.BUDGET if by_budget else ThinkingStyle.ADAPTIVE,
            beta_flags=declared.beta_flags if protocol in _MESSAGES_PROTOCOLS else (),
            has_search_blocks=protocol in _MESSAGES_PROTOCOLS,
        ),
        bounds_reasoning=preset.bounds_reasoning or protocol is not WireProtocol.CHAT,
        is_billed_to_end=backend.preset in BILLED_TO_END,
    )


def _tokens_per_image(declared: int | None, preset: Preset) -> int | None:
    """The model's, otherwise the preset's, otherwise the maximum of all known model families. A declared 0 is
    None: an image may fill the whole context."""
    default = preset.tokens_per_image or DEFAULT_TOKEN_BOUNDS.image
    return (default if declared is None else declared) or None


def _pricing(declared: PricesSettings, param: str = "") -> Pricing:
    tiers = [
        DeclaredTier(tier.above_tokens, {str(name): price for name, price in tier.pricing.items()})
        for tier in declared.price_tiers
    ]
    service_tiers = dict(declared.service_tiers)
    return pricing_with_variants(
        DeclaredPrices(
            prices={str(name): price for name, price in declared.pricing.items()},
            tiers=tiers,
            unasked_service_tier=service_tiers.pop("unasked", ""),
            service_tiers=service_tiers,
        ),
        param=param,
    )


def _price_changes(declared: ModelSettings) -> tuple[PriceChange, ...]:
    changes: dict[int, PriceChange] = {}
    for position, change in enumerate(declared.price_changes):
        prefix = f"price_changes.{position}."
        valid_from = int(change.valid_from.timestamp())
        if valid_from in changes:
            raise InvalidRequest(
                "Two price changes have the same valid_from.", param=f"{prefix}valid_from"
            )
        changes[valid_from] = PriceChange(valid_from, _pricing(change, prefix))
    return tuple(changes[valid_from] for valid_from in sorted(changes))


def _combined(
    declared: ModelSettings, on_backends: Sequence[Model], backends: Mapping[str, BackendSettings]
) -> Model:
    """`on_backends` has the model as each backend serves it, the main one first."""
    first = on_backends[0]
    if len(on_backends) == 1:
        return first
    options = {
        name: path
        for name, path in first.options.items()
        if all(name in model.options for model in on_backends)
    }
    protocols = {backends[model.backend].protocol for model in on_backends}
    if len(protocols) > 1 and not protocols <= _CLAUDE_PROTOCOLS:
        # Another provider's encryption.
        options.pop(ENCRYPTED_REASONING, None)
    bounds = [model.token_bounds for model in on_backends]
    cache_isolating = next((model for model in on_backends if model.isolates_cache), first)
    schema_bounds = next(
        (model.schema_bounds for model in on_backends if model.schema_bounds is not None), None
    )
    return replace(
        first,
        supported_sampling_parameters=_common(
            [model.supported_sampling_parameters for model in on_backends]
        ),
        supported_features=_common([model.supported_features for model in on_backends]),
        input_modalities=_common([model.input_modalities for model in on_backends]),
        output_modalities=_common([model.output_modalities for model in on_backends]),
        options=options,
        token_bounds=replace(
            first.token_bounds,
            image=_largest([bound.image for bound in bounds]),
            template=max(bound.template for bound in bounds),
            web_search=_largest([bound.web_search for bound in bounds]),
            unrequested_searches_max=max(bound.unrequested_searches_max for bound in bounds),
            unbounded=any(bound.unbounded for bound in bounds),
            limits_searches=all(bound.limits_searches for bound in bounds),
            search_rereads_prompt=any(bound.search_rereads_prompt for bound in bounds),
        ),
        messages=replace(
            first.messages,
            has_search_blocks=all(model.messages.has_search_blocks for model in on_backends),
        ),
        schema_bounds=schema_bounds,
        cache_salt_field=cache_isolating.cache_salt_field,
        allows_remote_media=all(model.allows_remote_media for model in on_backends),
        bounds_reasoning=all(model.bounds_reasoning for model in on_backends),
        reasons=any(model.reasons for model in on_backends),
        routes=tuple(_routes(declared, on_backends)),
    )


def _routes(declared: ModelSettings, on_backends: Sequence[Model]) -> list[Route]:
    routes = [Route(on_backends[0], order=0, weight=1)]
    for other, model in zip(declared.alternatives, on_backends[1:], strict=True):
        order = routes[-1].order + 1 if other.order is None else other.order
        routes.append(Route(model, order, other.weight))
    return routes


def _largest(bounds: Sequence[int | None]) -> int | None:
    """None (no limit) if one is None."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _common(declared: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """In the order of the first."""
    return tuple(name for name in declared[0] if all(name in names for names in declared))
