"""Backend defaults for each known provider or server; operators can override all. For a provider
with an OpenAI-compatible endpoint, add an entry to `PRESETS`, a recorded exchange
(`tests/journeys/exchanges/recorded`) and a row in `docs/providers.md`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tollkeeper.providers.config import (
    NO_BILLING_RULES,
    BillingRules,
    OutputLimitField,
    Tokenizer,
    WireProtocol,
)
from tollkeeper.providers.credentials import CredentialKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    # Empty if every installation has its own.
    url: str = ""
    # Without a `url`: its form, with placeholders in capital letters.
    address_form: str = ""
    protocol: WireProtocol = WireProtocol.CHAT
    credential: CredentialKind = CredentialKind.BEARER
    # As the provider's documentation names it. Empty without a key.
    key_env: str = ""
    output_limit_field: OutputLimitField = OutputLimitField.SAME_AS_CLIENT
    # With `stream_options`. False if the server reports usage anyway, or rejects the field.
    include_usage: bool = True
    # The output limit includes reasoning tokens.
    bounds_reasoning: bool = True
    # Several completions in one call.
    native_n: bool = True
    # None means the protocol's token count request, if there's one.
    tokenizer: Tokenizer | None = None
    # Answered with 501, unless the value is a default in `chat/dialect.py`.
    refused: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    # The server doesn't need or accept them.
    omitted: tuple[str, ...] = ()
    # In Responses requests. False if the server accepts only reasoning that it has encrypted.
    takes_reasoning_text: bool = True
    # The most for one image, for the hold. None: the highest of all published model families.
    tokens_per_image: int | None = None
    # The most that the provider's own system prompt adds, for the hold.
    hidden_prompt_tokens: int = 0
    billing_rules: BillingRules = NO_BILLING_RULES

    def settings(self) -> dict[str, Any]:
        """By their names in the settings file."""
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


# The field that clients may send instead is renamed to the one that the server requires.
_OTHER_LIMIT_FIELD = {
    OutputLimitField.MAX_TOKENS: OutputLimitField.MAX_COMPLETION_TOKENS.value,
    OutputLimitField.MAX_COMPLETION_TOKENS: OutputLimitField.MAX_TOKENS.value,
}
# Models that search unasked, at any provider, and how many searches a call reserves. One observed
# deep research answer made 28.
_SEARCHING_MODELS = (
    (re.compile(r"deep-research"), 40),
    (re.compile(r"sonar|compound|:online$|-search-(preview|api)"), 10),
)
# Models that reason unasked, at any provider. Their billed output may be longer than their text.
_REASONING_MODELS = re.compile(
    r"\b(o[134](-|$)|gpt-5|gpt-oss|codex|deepseek-(r1|reasoner)|grok-[3-9]|gemini-(2\.5|[3-9])|qwq|qwen3)"
    r"|thinking|reason|deep-research|magistral|minimax-m|glm-[4-9]|compound"
)

# Up to 308 were added to short prompts, at xAI and Azure.
GROK_HIDDEN_PROMPT_TOKENS = 320

# Reasoning needs a token budget before Claude 4.6 and Gemini 3.
_BUDGET_MODELS = re.compile(
    r"claude-[123]|claude-(opus|sonnet|haiku)-4([-.@][0-5])?(?![0-9]|[-.][6-9](?![0-9]))"
    r"|gemini-(1|2)[.-]"
)


def unrequested_searches_max(upstream_model: str) -> int:
    """For which a call reserves credit."""
    name = upstream_model.lower()
    return next((count for pattern, count in _SEARCHING_MODELS if pattern.search(name)), 0)


def hidden_prompt_tokens(upstream_model: str, preset: Preset) -> int:
    """At most."""
    by_name = GROK_HIDDEN_PROMPT_TOKENS if "grok" in upstream_model.lower() else 0
    return max(by_name, preset.hidden_prompt_tokens)


def thinks_by_budget(upstream_model: str) -> bool:
    """Later models only need an effort, and choose the amount themselves."""
    return _BUDGET_MODELS.search(upstream_model.lower()) is not None


def reasons_unasked(upstream_model: str) -> bool:
    return _REASONING_MODELS.search(upstream_model.lower()) is not None


# For the client's end users and labels; without effect on the answer.
_CLIENT_LABELS = ("user", "safety_identifier", "metadata")
# Not sent to servers that reject messages with unknown fields.
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
        # The operator pays for no tokens, so the server's counts are the bill.
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

# Providers that bill the whole answer even if the gateway stops reading, by OpenRouter's list of
# those that it can't stop ("Stream Cancellation").
BILLED_TO_END = frozenset(
    {
        *("gemini", "gemini-openai", "vertex", "vertex-gemini"),
        *("bedrock", "bedrock-claude", "bedrock-openai"),
        *("groq", "mistral", "perplexity"),
    }
)
assert PRESETS.keys() >= BILLED_TO_END
