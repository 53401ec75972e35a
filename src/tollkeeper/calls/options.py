"""Checks that a model supports a prompt's media, tools and options."""

from collections.abc import Iterator, Mapping
from operator import attrgetter

from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.conventions import DEFAULT_OUTPUT_TOKENS, PROVIDER_SEARCH_TOOLS
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import (
    DEFAULT_SAMPLING,
    File,
    FreeObject,
    FunctionTool,
    Media,
    Prompt,
    SchemaOutput,
)
from tollkeeper.core.schema_size import SchemaSize, measure_schema

# What needs a feature of the model. Most prompts have none of this.
_optional_features = attrgetter(
    *("tools", "output_format", "logprobs", "web_search", "reasoning", "options"),
    "output_modalities",
)
_NO_FEATURES = _optional_features(Prompt(turns=()))


def output_limit(client_limit: int | None, model: Model, param: str) -> int:
    """In tokens."""
    if client_limit is None:
        return min(DEFAULT_OUTPUT_TOKENS, model.max_output_length)
    if client_limit > model.max_output_length:
        raise InvalidRequest(
            f"The model {model.id} writes at most {model.max_output_length} tokens.", param=param
        )
    return client_limit


def require_supported(model: Model, prompt: Prompt) -> None:
    """The error's `param` is the position of the field or content that the model doesn't
    support."""
    for media in prompt.media:
        _require_medium(model, media)
    if prompt.sampling != DEFAULT_SAMPLING:
        for name in prompt.sampling.set_fields():
            if name not in model.supported_sampling_parameters:
                raise _unsupported(model, name)
    if _optional_features(prompt) == _NO_FEATURES:
        return
    for feature, param in _features(prompt):
        if feature not in model.supported_features:
            raise _missing_feature(model, feature, param)
    _require_priced_tools(model, prompt)
    for option in prompt.options:
        if option.name not in model.options:
            raise _unsupported(model, option.param)
    for modality in prompt.output_modalities:
        if modality.name not in model.output_modalities:
            raise OptionUnsupported(
                f"The model {model.id} does not answer with {modality.name[:100]!r}.",
                param=modality.param,
            )
    _require_small_schemas(model, prompt)


def _require_priced_tools(model: Model, prompt: Prompt) -> None:
    for name, tool in prompt.provider_tools if prompt.tools else ():
        if name not in PROVIDER_SEARCH_TOOLS and name not in model.tool_prices:
            raise OptionUnsupported(
                f"The tool {name[:100]!r} is run by the model's provider, and the model {model.id} "
                "has no price for it.",
                param=tool.place,
            )


def _features(prompt: Prompt) -> Iterator[tuple[Feature, str]]:
    """With the position of the request field that needs the feature."""
    if prompt.tools:
        yield Feature.TOOLS, "functions" if prompt.has_legacy_functions_only else "tools"
    output_format = prompt.output_format
    if output_format is not None:
        is_schema = isinstance(output_format, SchemaOutput)
        yield Feature.STRUCTURED_OUTPUTS if is_schema else Feature.JSON_MODE, output_format.param
    if prompt.logprobs is not None:
        yield Feature.LOGPROBS, prompt.logprobs.param
    if prompt.web_search is not None:
        yield Feature.WEB_SEARCH, prompt.web_search.param
    for name, tool in prompt.provider_tools if prompt.tools else ():
        if name in PROVIDER_SEARCH_TOOLS:
            yield Feature.WEB_SEARCH, tool.place
    if prompt.reasoning is not None:
        for param in prompt.reasoning.params:
            yield Feature.REASONING, param


def _require_medium(model: Model, media: Media) -> None:
    if media.modality not in model.input_modalities:
        raise OptionUnsupported(
            f"The model {model.id} does not take {media.modality}.", param=media.place
        )
    if not model.allows_remote_media:
        # The backend mustn't fetch it.
        is_remote = media.url is not None and media.url[:5].lower() != "data:"
        if is_remote or (isinstance(media, File) and media.id is not None):
            raise InvalidRequest(
                f"The model {model.id} accepts no URLs and no file ids: send the content in the "
                "request, in base64 or as a data: URL.",
                param=media.place,
            )


def _unsupported(model: Model, param: str) -> OptionUnsupported:
    return OptionUnsupported(f"The model {model.id} does not support {param}.", param=param)


def _missing_feature(model: Model, feature: Feature, param: str) -> OptionUnsupported:
    declared = ", ".join(model.supported_features) or "none"
    return OptionUnsupported(
        f"The model {model.id} does not support {param}: it has no {feature}. "
        f"Its features: {declared}.",
        param=param,
    )


def _require_small_schemas(model: Model, prompt: Prompt) -> None:
    """All the request's schemas count together."""
    bounds = model.schema_bounds
    if bounds is None:
        return
    total = SchemaSize()
    for place, schema in _schemas(prompt):
        total += measure_schema(schema, bounds)
        limit = total.exceeded_limit(bounds)
        if limit is not None:
            raise InvalidRequest(f"The model {model.id} takes at most {limit}.", param=place)


def _schemas(prompt: Prompt) -> Iterator[tuple[str, FreeObject]]:
    for tool in prompt.tools:
        if isinstance(tool, FunctionTool) and isinstance(tool.parameters, Mapping):
            yield tool.schema_place, tool.parameters
    if isinstance(prompt.output_format, SchemaOutput):
        yield prompt.output_format.schema_place, prompt.output_format.schema
