"""From declared models to the catalogue."""

from tollkeeper.backends.engine_limits import ENGINE_SCHEMA_BOUNDS
from tollkeeper.domain.catalog import Catalog, Model, pricing_from_declared
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.settings import ModelSettings, Settings, SettingsError


def build_catalog(settings: Settings) -> Catalog:
    embedded = {backend.name for backend in settings.backends if backend.kind == "embedded"}
    room = settings.embedded.context_length
    for model in settings.models:
        if model.backend in embedded and model.context_length > room:
            raise SettingsError(
                f"models {model.id!r}: context_length = {model.context_length}: "
                f"embedded.context_length gives it {room}."
            )
    return Catalog(tuple(_model(model, model.backend in embedded) for model in settings.models))


def _model(declared: ModelSettings, embedded: bool) -> Model:
    try:
        pricing = pricing_from_declared(
            {str(key): value for key, value in declared.pricing.items()}, param="pricing"
        )
    except InvalidRequest as exc:
        raise SettingsError(f"models {declared.id!r}: {exc.param}: {exc.message}") from None
    return Model(
        id=declared.id,
        backend=declared.backend,
        upstream_model=declared.upstream_model,
        owned_by=declared.owned_by,
        name=declared.name or declared.id,
        display_name=declared.display_name or declared.name or declared.id,
        created=declared.created,
        context_length=declared.context_length,
        max_output_length=declared.max_output_length,
        input_modalities=declared.input_modalities,
        output_modalities=declared.output_modalities,
        quantization=declared.quantization,
        supported_sampling_parameters=declared.supported_sampling_parameters,
        supported_features=declared.supported_features,
        sampling_limits=declared.sampling_limits,
        sampling_limits_revision=declared.sampling_limits_revision,
        required_checks=declared.required_checks,
        is_ready=declared.is_ready,
        pricing=pricing,
        options=declared.options,
        schema_bounds=ENGINE_SCHEMA_BOUNDS if embedded else None,
    )
