"""Combines the properties of a model that several backends serve. The combined model offers only features
that all of these backends support."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tollkeeper.backends.request_fields import ENCRYPTED_REASONING
from tollkeeper.domain.catalog import Model, Route
from tollkeeper.settings import BackendSettings, ModelSettings

# The protocols for Claude models. Each accepts encrypted reasoning that came over another of these protocols.
_CLAUDE_PROTOCOLS = {"messages", "vertex_messages", "bedrock_messages"}


def combined(
    declared: ModelSettings, on_backends: Sequence[Model], backends: Mapping[str, BackendSettings]
) -> Model:
    """Combines the variants of a model. `on_backends` contains the model as each of its backends serves
    it; the main backend comes first."""
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
        # A provider cannot read reasoning that another provider has encrypted.
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
    """Returns the largest limit. Returns None (no limit) if at least one of the limits is None."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _common(declared: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the names that are in every tuple, in the order of the first tuple."""
    return tuple(name for name in declared[0] if all(name in names for names in declared))
