"""Which options of a request a model takes, and how they reach its backend."""

from collections.abc import Iterable, Mapping
from typing import Any

from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.schema_size import SchemaSize, measure_schema

SAMPLING_PARAMETERS = (
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "stop",
)


def require_feature(model: Model, feature: Feature, param: str) -> None:
    if feature not in model.supported_features:
        raise OptionUnsupported(f"The model {model.id} does not support {param}.", param=param)


def require_sampling(model: Model, used: Iterable[str]) -> None:
    for name in used:
        if name not in model.supported_sampling_parameters:
            raise OptionUnsupported(f"The model {model.id} does not support {name}.", param=name)


def require_modality(model: Model, modality: str, param: str, *, output: bool = False) -> None:
    declared = model.output_modalities if output else model.input_modalities
    if modality not in declared:
        raise OptionUnsupported(f"The model {model.id} does not take {modality}.", param=param)


def require_small_schemas(model: Model, schemas: Iterable[tuple[str, object]]) -> None:
    """For a model whose backend bounds them: all schemas of a request, each with its place there."""
    bounds = model.schema_bounds
    if bounds is None:
        return
    total = SchemaSize()
    for param, schema in schemas:
        if not isinstance(schema, Mapping):
            continue
        total += measure_schema(schema, bounds)
        excess = total.excess(bounds)
        if excess is not None:
            raise InvalidRequest(f"The model {model.id} takes at most {excess}.", param=param)


def mapped_options(model: Model, wanted: Mapping[str, Any], *, within: str = "") -> dict[str, Any]:
    """Options without a published meaning, put where the model's `options` say that its backend
    reads them: `thinking` may become `chat_template_kwargs.enable_thinking`. `within` is where the
    caller's request has them, as in `text.`verbosity."""
    fields: dict[str, Any] = {}
    for option, value in wanted.items():
        path = model.options.get(option)
        if path is None:
            param = within + option
            raise OptionUnsupported(f"The model {model.id} does not support {param}.", param=param)
        place = fields
        *folders, name = path.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return fields


def merge_fields(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds fields to a backend's request. Two options may live in the same folder of it, so what
    both bring as an object is put together, not replaced."""
    for name, value in more.items():
        found = fields.get(name)
        if isinstance(found, dict) and isinstance(value, dict):
            merge_fields(found, value)
        else:
            fields[name] = value
