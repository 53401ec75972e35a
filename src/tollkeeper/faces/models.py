"""GET /v1/models and GET /v1/models/{model}."""

from typing import cast

from tollkeeper.core.catalog import Model, ModelAccess
from tollkeeper.core.routes import shown_prices
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import models as wire


async def model_read(services: ApiServices, request: Request[None, None]) -> wire.Model:
    model, access = await services.models.model_read(request.project_caller, request.path["model"])
    return model_view(model, access, services.clock())


async def model_list(services: ApiServices, request: Request[None, None]) -> wire.ModelList:
    usable = await services.models.model_list(request.project_caller)
    now = services.clock()
    return wire.ModelList(
        object="list", data=[model_view(model, access, now) for model, access in usable]
    )


def model_view(model: Model, access: ModelAccess, now: int) -> wire.Model:
    """With the prices that are valid at `now` (Unix seconds)."""
    return wire.Model(
        object="model",
        id=model.id,
        owned_by=model.owned_by,
        name=model.name,
        display_name=model.display_name,
        access=wire.ModelAccess(
            required_checks=list(access.required_checks),
            available=access.available,
            locked=access.locked,
            missing_requirements=list(access.missing_requirements),
        ),
        created=model.created,
        input_modalities=cast("list[wire.Modality]", list(model.input_modalities)),
        output_modalities=cast("list[wire.Modality]", list(model.output_modalities)),
        pricing=wire.ModelPricing(**shown_prices(model, now)),
        supported_sampling_parameters=list(model.supported_sampling_parameters),
        sampling_limits=model.sampling_limits,
        sampling_limits_revision=model.sampling_limits_revision,
        supported_features=list(model.supported_features),
        is_ready=model.is_ready,
        quantization=model.quantization,
        context_length=model.context_length,
        max_output_length=model.max_output_length,
        root=model.id,
        parent=None,
    )
