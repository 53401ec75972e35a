"""Combines a model that several backends serve: it offers what all of them support."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tollkeeper.backends.request_fields import ENCRYPTED_REASONING
from tollkeeper.domain.catalog import Model, Route
from tollkeeper.settings import BackendSettings, ModelSettings

# Each accepts encrypted reasoning that came over another.
_CLAUDE_PROTOCOLS = {"messages", "vertex_messages", "bedrock_messages"}


def combined(
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
