"""Describes the packaged model as the embedded engine serves it.

Every entry was tested with the engine. The settings create a catalogue entry from them and add the
price. Models from other files are described in the settings alone.
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
    # Tokens per slot. The model was trained for 8,192, but four slots of 8,192 take 0.9 GB, and a
    # prompt of that length takes minutes on one core. Four slots of 4,096 take 0.5 GB.
    context_length=4096,
    # Half of the context. Without a limit the engine writes until the context is full, and then the
    # finish reason is "length".
    max_output_length=2048,
    # The engine answers an image with 500.
    input_modalities=("text",),
    output_modalities=("text",),
    # Q4_1: blocks of 4-bit integers with a scale and a minimum.
    quantization="int4",
    supported_sampling_parameters=(
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        # Keys are token ids.
        "logit_bias",
        # The engine uses the low 32 bits. If all of them are set, as in -1, there is no seed. Equal
        # seeds give equal answers only if the engine batches the calls in the same way.
        "seed",
        "stop",
    ),
    supported_features=(
        # The schema constrains decoding. An answer that reaches its limit is incomplete JSON.
        Feature.JSON_MODE,
        Feature.STRUCTURED_OUTPUTS,
        Feature.LOGPROBS,
        # No tools: the model's template drops them, and a required call is answered with text. No
        # reasoning or web search: the engine silently ignores their options.
    ),
)


# While the engine searches for a token that a schema allows, no other call makes progress. The
# longest search on one busy core of a Neoverse N1, by number of values in one enum: 250 took 0.6 s,
# 400 1.0 s, 500 1.4 s, 1,000 4 s, 2,000 12 s, 4,000 41 s. Branches and patterns cost the same.
# Length and depth are cheap: 2,000 required properties (74 kB) took 0.04 s, and so did 60 nested
# objects.
ENGINE_SCHEMA_BOUNDS = SchemaBounds(choices_max=400, bytes_max=64 * 1024)
