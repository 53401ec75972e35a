"""The packaged model as the embedded engine serves it, tested property by property. The settings make the
catalogue entry from it and add the price. Other model files are described in the settings only."""

from dataclasses import dataclass

from tollkeeper.core.catalog import Feature
from tollkeeper.core.schema_size import SchemaBounds


@dataclass(frozen=True, slots=True)
class PackagedModel:
    id: str
    upstream_model: str
    owned_by: str
    name: str
    created: int
    context_length: int
    max_output_length: int
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    quantization: str
    supported_sampling_parameters: tuple[str, ...]
    supported_features: tuple[str, ...]


PACKAGED_MODEL = PackagedModel(
    id="tollkeeper/smollm2-135m-instruct",
    upstream_model="smollm2-135m-instruct",
    owned_by="huggingfacetb",
    name="SmolLM2 135M Instruct",
    created=1730419200,
    # Per slot. Trained for 8,192, but such a prompt takes minutes on one core. Four slots take 0.5 GB, with
    # 8,192 tokens 0.9 GB.
    context_length=4096,
    # Half of the context. Without a limit the engine goes on until the context is full, and finishes with
    # "length".
    max_output_length=2048,
    # With an image, the engine returns 500.
    input_modalities=("text",),
    output_modalities=("text",),
    # Q4_1 has blocks of 4-bit integers, each with a scale and a minimum.
    quantization="int4",
    supported_sampling_parameters=(
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        # Its keys are token ids.
        "logit_bias",
        # The engine uses the low 32 bits, and no seed if all are set, as in -1. The same seed only gives the
        # same answer if calls share batches the same way.
        "seed",
        "stop",
    ),
    supported_features=(
        # Only tokens that the schema allows. At its token limit, an answer is incomplete JSON.
        Feature.JSON_MODE,
        Feature.STRUCTURED_OUTPUTS,
        Feature.LOGPROBS,
        # No tools: the template drops them, and the model answers with text even if a call is required. The
        # engine silently ignores reasoning and web search.
    ),
)


# While the engine looks for a token that a schema allows, no other call moves. Longest search on one busy
# Neoverse N1 core: 0.6 s for an enum of 250, 1.0 s for 400, 1.4 s for 500, 4 s for 1,000, 12 s for 2,000, 41
# s for 4,000. Branches and patterns take as long. Long or deep schemas are fast: 0.04 s for 2,000 required
# properties (74 kB) and for 60 nested objects.
ENGINE_SCHEMA_BOUNDS = SchemaBounds(choices_max=400, bytes_max=64 * 1024)
