"""What is true of the model that the package index carries, as the embedded engine serves it.

Every entry was tried against the engine. The settings turn these facts into an entry of the
catalogue; the price is theirs, and so is another model's description.
"""

from dataclasses import dataclass

from tollkeeper.domain.catalog import Feature


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
    # Of each slot. The model was trained for 8,192, but four such slots hold 0.9 GB and a prompt
    # of that length takes minutes on one core; four of these hold 0.5 GB.
    context_length=4096,
    # Half of the context. The engine itself goes on until the context is full and says "length".
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
        # By token id.
        "logit_bias",
        # The low 32 bits count, and all of them set (also -1) means none. Equal seeds repeat an
        # answer only where the engine batches the call alike.
        "seed",
        "stop",
    ),
    supported_features=(
        # Decoding is constrained. An answer that was cut by its bound is not complete JSON.
        Feature.JSON_MODE,
        Feature.STRUCTURED_OUTPUTS,
        Feature.LOGPROBS,
        # Not tools: the model's template drops them, and a required call is answered with text.
        # Not reasoning and not web search: their options are ignored without a word.
    ),
)
