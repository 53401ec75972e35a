"""GET /v1/models and GET /v1/models/{model}."""

from typing import Literal

from tollkeeper.http.wire_base import FreeObject, ResponseObject, UnixTime

Modality = Literal["text", "image", "file", "audio", "video"]


class ModelAccess(ResponseObject):
    required_checks: list[str]
    available: bool
    locked: bool
    missing_requirements: list[str]


class ModelPricing(ResponseObject):
    prompt: str
    completion: str
    image: str
    request: str
    input_cache_read: str


class Model(ResponseObject):
    object: Literal["model"]
    id: str
    owned_by: str
    name: str
    display_name: str
    access: ModelAccess
    created: UnixTime
    input_modalities: list[Modality]
    output_modalities: list[Modality]
    pricing: ModelPricing
    supported_sampling_parameters: list[str]
    sampling_limits: FreeObject
    sampling_limits_revision: str
    supported_features: list[str]
    is_ready: bool
    quantization: str
    context_length: int
    max_output_length: int
    root: str
    parent: str | None


class ModelList(ResponseObject):
    object: Literal["list"]
    data: list[Model]
