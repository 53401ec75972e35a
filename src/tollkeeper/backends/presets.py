"""Defines the presets: the default settings of a backend for each known provider or server.

The operator can override every default. To add a provider with an OpenAI-compatible endpoint, add an
entry to `PRESETS`, a recorded exchange (`tests/journeys/exchanges/recorded`) and a row in
`docs/providers.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tollkeeper.backends.config import (
    NO_BILLING_RULES,
    BillingRules,
    OutputLimitField,
    Tokenizer,
    WireProtocol,
)
from tollkeeper.backends.credentials import CredentialKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Contains the defaults for one provider or server."""

    # The base address. Empty if every installation has its own address.
    url: str = ""
    # If `url` is empty: the form of the address, with placeholders in capital letters.
    address_form: str = ""
    protocol: WireProtocol = WireProtocol.CHAT
    credential: CredentialKind = CredentialKind.BEARER
    # The environment variable that contains the key, as the provider's documentation names it.
    # Empty if the server needs no key, or if the credential is not a key.
    key_env: str = ""
    # The field of a chat request that contains the output limit.
    output_limit_field: OutputLimitField = OutputLimitField.SAME_AS_CLIENT
    # Whether a request for a chat stream asks for usage with `stream_options`. False if the server
    # reports usage without the field, or rejects the field.
    include_usage: bool = True
    # Whether the output limit of a chat request includes reasoning tokens.
    bounds_reasoning: bool = True
    # Whether the server supports `n`: several completions in one call.
    native_n: bool = True
    # None means the token count request of the protocol, if the protocol has one.
    tokenizer: Tokenizer | None = None
    # Fields of a chat request that the server does not support. The gateway answers 501 to a
    # request with one of these fields, unless the value is a default in `chat/dialect.py`.
    refused: tuple[str, ...] = ()
    # Fields of a chat request that have another name at this server.
    renamed: Mapping[str, str] = field(default_factory=dict)
    # Fields of a chat request that are not sent, because the server does not need or accept them.
    omitted: tuple[str, ...] = ()
    # Whether a Responses request may contain earlier reasoning as plain text. False if the server
    # accepts only reasoning that it has encrypted itself.
    takes_reasoning_text: bool = True
    # The maximum number of input tokens for one image, for the hold (the amount that is reserved
    # before a call). None means the maximum of all published model families.
    tokens_per_image: int | None = None
    # The maximum number of tokens of a system prompt that the provider adds to every prompt, for the
    # hold.
    hidden_prompt_tokens: int = 0
    billing_rules: BillingRules = NO_BILLING_RULES

    def settings(self) -> dict[str, Any]:
        """Returns the preset as backend settings, by their names in the settings file."""
        values: dict[str, Any] = {
            "protocol": self.protocol.value,
            "credential": self.credential.value,
            "native_n": self.native_n,
            "fields": self._fields(),
        }
        if self.url:
            values["urls"] = (self.url,)
        return values

    def _fields(self) -> dict[str, str | bool]:
        fields: dict[str, str | bool] = dict.fromkeys(self.refused, False)
        fields |= self.renamed
        fields |= dict.fromkeys(self.omitted, "")
        if not self.include_usage:
            fields["stream_options"] = ""
        if self.output_limit_field is not OutputLimitField.SAME_AS_CLIENT:
            fields[_OTHER_LIMIT_FIELD[self.output_limit_field]] = self.output_limit_field.value
        return fields


# For each field that a server may require for the output limit: the other field that clients may
# send, which is then renamed.
_OTHER_LIMIT_FIELD = {
    OutputLimitField.MAX_TOKENS: OutputLimitField.MAX_COMPLETION_TOKENS.value,
    OutputLimitField.MAX_COMPLETION_TOKENS: OutputLimitField.MAX_TOKENS.value,
}
# Patterns for the names of models that search the web without being asked, at any provider. The
# number is the number of searches for which a call reserves credit. One observed deep research
# answer made 28 searches.
_SEARCHING_MODELS = (
    (re.compile(r"deep-research"), 40),
    (re.compile(r"sonar|compound|:online$|-search-(preview|api)"), 10),
)
# The names of models that reason without being asked, at any provider. Their billed output may be
# longer than the text that a client sees.
_REASONING_MODELS = re.compile(
    r"\b(o[134](-|$)|gpt-5|gpt-oss|codex|deepseek-(r1|reasoner)|grok-[3-9]|gemini-(2\.5|[3-9])|qwq|qwen3)"
    r"|thinking|reason|deep-research|magistral|minimax-m|glm-[4-9]|compound"
)

# Grok's hidden system prompt added up to 308 tokens to short prompts, at xAI and at Azure.
GROK_HIDDEN_PROMPT_TOKENS = 320

# The names of models that need a token budget for reasoning: models before Claude 4.6 and Gemini 3.
_BUDGET_MODELS = re.compile(
    r"claude-[123]|claude-(opus|sonnet|haiku)-4([-.@][0-5])?(?![0-9]|[-.][6-9](?![0-9]))"
    r"|gemini-(1|2)[.-]"
)


def unrequested_searches_max(upstream_model: str) -> int:
    """Returns the number of unrequested web searches for which a call to the model reserves
    credit."""
    name = upstream_model.lower()
    return next((count for pattern, count in _SEARCHING_MODELS if pattern.search(name)), 0)


def hidden_prompt_tokens(upstream_model: str, preset: Preset) -> int:
    """Returns the maximum number of tokens that the provider adds to every prompt of the model."""
    by_name = GROK_HIDDEN_PROMPT_TOKENS if "grok" in upstream_model.lower() else 0
    return max(by_name, preset.hidden_prompt_tokens)


def thinks_by_budget(upstream_model: str) -> bool:
    """Tells whether the model needs a token budget for reasoning. Later models need only an effort
    level, and choose the amount of reasoning themselves."""
    return _BUDGET_MODELS.search(upstream_model.lower()) is not None


def reasons_unasked(upstream_model: str) -> bool:
    """Tells whether the model reasons without being asked."""
    return _REASONING_MODELS.search(upstream_model.lower()) is not None


# Fields with which a client identifies its end user or labels the request. These fields do not
# affect the answer.
_CLIENT_LABELS = ("user", "safety_identifier", "metadata")
# Fields that contain the reasoning of earlier answers. Some servers reject a message with an unknown
# field, so these fields are not sent to them.
_REPLAYED_REASONING = ("messages.reasoning", "messages.reasoning_content")

PRESETS: Mapping[str, Preset] = {
    "openai": Preset(
        url="https://api.openai.com/v1",
        key_env="OPENAI_API_KEY",
        output_limit_field=OutputLimitField.MAX_COMPLETION_TOKENS,
        takes_reasoning_text=False,
    ),
    "azure": Preset(
        address_form="https://RESOURCE.openai.azure.com/openai/v1",
        credential=CredentialKind.API_KEY,
        key_env="AZURE_OPENAI_API_KEY",
        output_limit_field=OutputLimitField.MAX_COMPLETION_TOKENS,
        takes_reasoning_text=False,
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
        omitted=_CLIENT_LABELS,
    ),
    "mistral": Preset(
        url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        include_usage=False,
        refused=("logit_bias", "logprobs", "top_logprobs", "functions", "function_call"),
        renamed={"seed": "random_seed"},
        omitted=(*_CLIENT_LABELS, *_REPLAYED_REASONING),
        tokens_per_image=4160,
    ),
    "groq": Preset(
        url="https://api.groq.com/openai/v1",
        key_env="GROQ_API_KEY",
        output_limit_field=OutputLimitField.MAX_COMPLETION_TOKENS,
        native_n=False,
        refused=("logit_bias", "logprobs", "top_logprobs"),
        omitted=("messages.reasoning_content",),
    ),
    "deepseek": Preset(
        url="https://api.deepseek.com/v1",
        key_env="DEEPSEEK_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "seed"),
    ),
    "xai": Preset(
        url="https://api.x.ai/v1",
        key_env="XAI_API_KEY",
        bounds_reasoning=False,
        refused=("logit_bias",),
        tokens_per_image=1792,
        hidden_prompt_tokens=GROK_HIDDEN_PROMPT_TOKENS,
    ),
    "together": Preset(
        url="https://api.together.ai/v1",
        key_env="TOGETHER_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
    ),
    "fireworks": Preset(
        url="https://api.fireworks.ai/inference/v1",
        key_env="FIREWORKS_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
    ),
    "openrouter": Preset(
        url="https://openrouter.ai/api/v1",
        key_env="OPENROUTER_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        include_usage=False,
        native_n=False,
        billing_rules=BillingRules(free_finish="error"),
    ),
    "perplexity": Preset(
        url="https://api.perplexity.ai/v1",
        protocol=WireProtocol.RESPONSES,
        key_env="PERPLEXITY_API_KEY",
    ),
    "cohere": Preset(
        url="https://api.cohere.ai/compatibility/v1",
        key_env="COHERE_API_KEY",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "parallel_tool_calls"),
        omitted=_CLIENT_LABELS,
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
        # The operator runs the server and pays for no tokens, so its counts are the bill.
        billing_rules=BillingRules(bills_running_totals=True),
    ),
    "sglang": Preset(
        address_form="http://HOST:30000/v1",
        output_limit_field=OutputLimitField.MAX_TOKENS,
    ),
    "llamacpp": Preset(
        address_form="http://HOST:8080/v1",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        tokenizer=Tokenizer.LLAMA_CPP,
    ),
    "ollama": Preset(
        url="http://127.0.0.1:11434/v1",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        refused=("logit_bias", "tool_choice", "parallel_tool_calls"),
        omitted=_CLIENT_LABELS,
    ),
    "tgi": Preset(
        address_form="http://HOST:3000/v1",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        omitted=_CLIENT_LABELS,
    ),
    "lmstudio": Preset(
        url="http://127.0.0.1:1234/v1",
        output_limit_field=OutputLimitField.MAX_TOKENS,
        native_n=False,
        omitted=_CLIENT_LABELS,
    ),
}

# The presets of providers that generate and bill the whole answer, even if the gateway stops reading it,
# according to OpenRouter's list of providers that it cannot stop ("Stream Cancellation").
BILLED_TO_END = frozenset(
    {
        *("gemini", "gemini-openai", "vertex", "vertex-gemini"),
        *("bedrock", "bedrock-claude", "bedrock-openai"),
        *("groq", "mistral", "perplexity"),
    }
)
assert PRESETS.keys() >= BILLED_TO_END
