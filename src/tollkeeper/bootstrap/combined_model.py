"""Combines a model on several backends: it offers only what all of them support."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tollkeeper.backends.claude_thinking import ENCRYPTED_REASONING
from tollkeeper.domain.catalog import Model, Route
from tollkeeper.settings import BackendSettings, ModelSettings

# All of these accept each other's signatures, because they have the same provider.
_SHARING_SIGNATURES = {"messages", "vertex_messages", "bedrock_messages"}


def combined(
    declared: ModelSettings, on_backends: Sequence[Model], backends: Mapping[str, BackendSettings]
) -> Model:
    """Combines the models in `on_backends`, the model's own backend first."""
    first = on_backends[0]
    if len(on_backends) == 1:
        return first
    options = {
        name: path
        for name, path in first.options.items()
        if all(name in model.options for model in on_backends)
    }
    protocols = {backends[model.backend].protocol for model in on_backends}
    if len(protocols) > 1 and not protocols <= _SHARING_SIGNATURES:
        # One protocol cannot read reasoning that another has sealed.
        options.pop(ENCRYPTED_REASONING, None)
    bounds = [model.token_bounds for model in on_backends]
    salting = next((model for model in on_backends if model.isolates_cache), first)
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
            web_search=_largest([bound.web_search for bound in bounds]),
            searches_unasked=max(bound.searches_unasked for bound in bounds),
            search_rereads=any(bound.search_rereads for bound in bounds),
        ),
        schema_bounds=schema_bounds,
        cache_salt_field=salting.cache_salt_field,
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
    """Returns the limit that covers all of them; None if one of them has none."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _common(declared: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the names that all of them have, in the order of the first."""
    return tuple(name for name in declared[0] if all(name in names for names in declared))
