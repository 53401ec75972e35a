"""Defines presets: a table of known providers and servers.

A preset sets defaults of a backend's settings, which the operator can override. A new provider with
an OpenAI-compatible endpoint is one entry here, a recorded exchange
(`tests/journeys/exchanges/recorded`) and a row in `docs/providers.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tollkeeper.backends.config import OutputBound, Tokenizer, WireProtocol
from tollkeeper.backends.credentials import CredentialKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    # The base address. If empty, it differs by installation, and `address_form` shows its form.
    url: str = ""
    address_form: str = ""
    protocol: WireProtocol = WireProtocol.CHAT
    credential: CredentialKind = CredentialKind.BEARER
    # The environment variable with the key, from the provider's own documentation. If empty, there
    # may be no key, or none that a variable can hold.
    key_env: str = ""
    # The field of a chat request with the output limit.
    output_bound: OutputBound = OutputBound.CALLER
    # Whether a chat stream is asked for its usage. False if it reports unasked, or rejects the
    # field.
    include_usage: bool = True
    # Whether the limit of a chat request covers reasoning.
    bounds_reasoning: bool = True
    # Whether it creates several completions in one call.
    native_n: bool = True
    tokenizer: Tokenizer | None = None
    # Fields of a chat request: those answered with 501, those with another name, and those that are
    # omitted, because the answer does not depend on them.
    refused: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    # The maximum input tokens of one image, for holds. None means the maximum of any published
    # family.
    tokens_per_image: int | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the backend settings of the preset."""
        found: dict[str, Any] = {
            "protocol": self.protocol.value,
            "credential": self.credential.value,
            "native_n": self.native_n,
            "fields": self._fields(),
        }
        if self.url:
            found["urls"] = (self.url,)
        return found

    def _fields(self) -> dict[str, str | bool]:
        fields: dict[str, str | bool] = dict.fromkeys(self.refused, False)
        fields |= self.renamed
        fields |= dict.fromkeys(self.omitted, "")
        if not self.include_usage:
            fields["stream_options"] = ""
        if self.output_bound is not OutputBound.CALLER:
            fields[_OTHER_BOUND[self.output_bound]] = self.output_bound.value
        return fields


_OTHER_BOUND = {
    OutputBound.MAX_TOKENS: OutputBound.MAX_COMPLETION_TOKENS.value,
    OutputBound.MAX_COMPLETION_TOKENS: OutputBound.MAX_TOKENS.value,
}
# Models that search the web on their own, by their names at any provider, with the number of
# searches that a call holds credit for. One deep research answer made 28.
_SEARCHING_MODELS = (
    (re.compile(r"deep-research"), 40),
    (re.compile(r"sonar|compound|:online$|-search-(preview|api)"), 10),
)
# Models that reason on their own, by their names at any provider. Their billed output may be longer
# than the text that a client sees.
_REASONING_MODELS = re.compile(
    r"\b(o[134](-|$)|gpt-5|gpt-oss|codex|deepseek-(r1|reasoner)|grok-[3-9]|gemini-(2\.5|[3-9])|qwq|qwen3)"
    r"|thinking|reason|deep-research|magistral|minimax-m|glm-[4-9]|compound"
)

# Models before Claude 4.6 and Gemini 3.
_BUDGET_MODELS = re.compile(
    r"claude-[123]|claude-(opus|sonnet|haiku)-4([-.@][0-5])?(?![0-9]|[-.][6-9](?![0-9]))"
    r"|gemini-(1|2)[.-]"
)


def searches_unasked(upstream_model: str) -> int:
    """Returns how many unrequested web searches a call to the model holds credit for."""
    name = upstream_model.lower()
    return next((count for pattern, count in _SEARCHING_MODELS if pattern.search(name)), 0)


def thinks_by_budget(upstream_model: str) -> bool:
    """Tells whether the model needs a token budget for reasoning, by its name at any provider.
    Later models decide by themselves, within an effort."""
    return _BUDGET_MODELS.search(upstream_model.lower()) is not None


def reasons_unasked(upstream_model: str) -> bool:
    return _REASONING_MODELS.search(upstream_model.lower()) is not None


_ABUSE_HINTS = ("user", "safety_identifier", "metadata")
# Reasoning of earlier answers, for servers that answer 422 to a message with an unknown field.
_REPLAYED_REASONING = ("messages.reasoning", "messages.reasoning_content")

PRESETS: Mapping[str, Preset] = {
    "openai": Preset(
        url="https://api.openai.com/v1",
        key_env="OPENAI_API_KEY",
        output_bound=OutputBound.MAX_COMPLETION_TOKENS,
    ),
    "azure": Preset(
        address_form="https://RESOURCE.openai.azure.com/openai/v1",
        credential=CredentialKind.API_KEY,
        key_env="AZURE_OPENAI_API_KEY",
        output_bound=OutputBound.MAX_COMPLETION_TOKENS,
    ),
    "anthropic": Preset(
        url="https://api.anthropic.com/v1",
        protocol=WireProtocol.MESSAGES,
        credential=CredentialKind.X_API_KEY,
        key_env="ANTHROPIC_API_KEY",
        tokens_per_image=4784,
    ),
    "gemini": Preset(
        url="https://generativelanguage.googleapis.com/v1beta",
        protocol=WireProtocol.GEMINI,
        credential=CredentialKind.X_GOOG_API_KEY,
        key_env="GEMINI_API_KEY",
    ),
    "gemini-openai": Preset(
        url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_env="GEMINI_API_KEY",
        omitted=_ABUSE_HINTS,
    ),
    "mistral": Preset(
        url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
        include_usage=False,
        refused=("logit_bias", "logprobs", "top_logprobs", "functions", "function_call"),
        renamed={"seed": "random_seed"},
        omitted=(*_ABUSE_HINTS, *_REPLAYED_REASONING),
        tokens_per_image=4160,
    ),
    "groq": Preset(
        url="https://api.groq.com/openai/v1",
        key_env="GROQ_API_KEY",
        output_bound=OutputBound.MAX_COMPLETION_TOKENS,
        native_n=False,
        refused=("logit_bias", "logprobs", "top_logprobs"),
    ),
    "deepseek": Preset(
        url="https://api.deepseek.com/v1",
        key_env="DEEPSEEK_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "seed"),
    ),
    "xai": Preset(
        url="https://api.x.ai/v1",
        key_env="XAI_API_KEY",
        bounds_reasoning=False,
        refused=("logit_bias",),
        tokens_per_image=1792,
    ),
    "together": Preset(
        url="https://api.together.ai/v1",
        key_env="TOGETHER_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
    ),
    "fireworks": Preset(
        url="https://api.fireworks.ai/inference/v1",
        key_env="FIREWORKS_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
    ),
    "openrouter": Preset(
        url="https://openrouter.ai/api/v1",
        key_env="OPENROUTER_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
        include_usage=False,
        native_n=False,
    ),
    "perplexity": Preset(
        url="https://api.perplexity.ai/v1",
        protocol=WireProtocol.RESPONSES,
        key_env="PERPLEXITY_API_KEY",
    ),
    "cohere": Preset(
        url="https://api.cohere.ai/compatibility/v1",
        key_env="COHERE_API_KEY",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "parallel_tool_calls"),
        omitted=_ABUSE_HINTS,
    ),
    "bedrock": Preset(
        address_form="https://bedrock-runtime.REGION.amazonaws.com",
        protocol=WireProtocol.CONVERSE,
        key_env="AWS_BEARER_TOKEN_BEDROCK",
    ),
    "bedrock-claude": Preset(
        address_form="https://bedrock-runtime.REGION.amazonaws.com",
        protocol=WireProtocol.BEDROCK_MESSAGES,
        key_env="AWS_BEARER_TOKEN_BEDROCK",
        tokens_per_image=4784,
    ),
    "bedrock-openai": Preset(
        address_form="https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
        key_env="AWS_BEARER_TOKEN_BEDROCK",
        native_n=False,
    ),
    "vertex": Preset(
        address_form=(
            "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION"
            "/publishers/anthropic/models"
        ),
        protocol=WireProtocol.VERTEX_MESSAGES,
        credential=CredentialKind.GOOGLE,
        tokens_per_image=4784,
    ),
    "vertex-gemini": Preset(
        address_form=(
            "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION"
            "/publishers/google/models"
        ),
        protocol=WireProtocol.VERTEX_GEMINI,
        credential=CredentialKind.GOOGLE,
    ),
    "vllm": Preset(
        address_form="http://HOST:8000/v1",
        tokenizer=Tokenizer.VLLM,
    ),
    "sglang": Preset(
        address_form="http://HOST:30000/v1",
        output_bound=OutputBound.MAX_TOKENS,
    ),
    "llamacpp": Preset(
        address_form="http://HOST:8080/v1",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        tokenizer=Tokenizer.LLAMA_CPP,
    ),
    "ollama": Preset(
        url="http://127.0.0.1:11434/v1",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "tool_choice", "parallel_tool_calls"),
        omitted=_ABUSE_HINTS,
    ),
    "tgi": Preset(
        address_form="http://HOST:3000/v1",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        omitted=_ABUSE_HINTS,
    ),
    "lmstudio": Preset(
        url="http://127.0.0.1:1234/v1",
        output_bound=OutputBound.MAX_TOKENS,
        native_n=False,
        omitted=_ABUSE_HINTS,
    ),
}
