"""Describes the packaged model as the embedded engine serves it.

Every property was tested with the engine. The settings create the model's catalogue entry from these
properties, and add the price. Other model files are described only in the settings.
"""

from dataclasses import dataclass

from tollkeeper.domain.catalog import Feature
from tollkeeper.domain.schema_size import SchemaBounds


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
    # Tokens per slot (the context of one running call). The model was trained for 8,192 tokens, but a
    # prompt of that length takes minutes on one core, and four slots take 0.9 GB. Four slots of 4,096
    # tokens take 0.5 GB.
    context_length=4096,
    # Half of the context. Without a limit, the engine generates tokens until the context is full, and the
    # finish reason is "length".
    max_output_length=2048,
    # For a prompt with an image, the engine returns status 500.
    input_modalities=("text",),
    output_modalities=("text",),
    # The file's format Q4_1 has blocks of 4-bit integers, each block with a scale and a minimum.
    quantization="int4",
    supported_sampling_parameters=(
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        # The keys of this parameter are token ids.
        "logit_bias",
        # The engine uses the low 32 bits of the seed. If all 32 bits are set, as in -1, it uses no seed.
        # The same seed gives the same answer only if the engine computes the calls in the same batches.
        "seed",
        "stop",
    ),
    supported_features=(
        # The engine generates only tokens that the schema allows. An answer that reaches its token limit
        # is incomplete JSON.
        Feature.JSON_MODE,
        Feature.STRUCTURED_OUTPUTS,
        Feature.LOGPROBS,
        # Tools are not supported: the model's chat template drops them, and the model answers with text
        # even if a tool call is required. Reasoning and web search are not supported: the engine silently
        # ignores their options.
    ),
)


# Limits for JSON schemas. While the engine searches for a token that a schema allows, no other call makes
# progress. On one busy core of a Neoverse N1, the longest search took 0.6 s for an enum with 250 values,
# 1.0 s with 400, 1.4 s with 500, 4 s with 1,000, 12 s with 2,000, and 41 s with 4,000. Branches and patterns
# take as long as enum values. Long or deep schemas are fast: 2,000 required properties (74 kB) took 0.04 s,
# and 60 nested objects took 0.04 s too.
ENGINE_SCHEMA_BOUNDS = SchemaBounds(choices_max=400, bytes_max=64 * 1024)
