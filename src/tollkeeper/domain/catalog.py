"""The model catalogue: models, their prices and features, and an organization's access to them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tollkeeper.domain.errors import InvalidRequest, ModelNotFound
from tollkeeper.domain.messages_behavior import DEFAULT_MESSAGES_BEHAVIOR, MessagesBehavior
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.domain.schema_size import SchemaBounds


class Feature(StrEnum):
    """Features of models. An option that needs a feature which the model lacks is a 501."""

    TOOLS = "tools"
    JSON_MODE = "json_mode"
    STRUCTURED_OUTPUTS = "structured_outputs"
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    WEB_SEARCH = "web_search"


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices in picousd per token, image or request, and the decimal strings of the settings."""

    prompt: int
    completion: int
    image: int
    request: int
    input_cache_read: int
    declared: dict[str, str] = field(compare=False, repr=False)
    # Not part of the public prices.
    input_cache_write: int = 0
    input_cache_write_1h: int = 0
    web_search: int = 0


# The public prices, and those that only the account knows.
PUBLIC_PRICES = ("prompt", "completion", "image", "request", "input_cache_read")
INTERNAL_PRICES = ("input_cache_write", "input_cache_write_1h", "web_search")
# A price that is not declared is that of another dimension, never zero: input is input.
_FALLBACKS = {
    "input_cache_read": "prompt",
    "input_cache_write": "prompt",
    "input_cache_write_1h": "input_cache_write",
}


def pricing_from_declared(declared: dict[str, str], *, param: str) -> Pricing:
    prices: dict[str, str] = {}
    amounts: dict[str, int] = {}
    for dimension in (*PUBLIC_PRICES, *INTERNAL_PRICES):
        fallback = prices.get(_FALLBACKS.get(dimension, ""), "0")
        prices[dimension] = declared.get(dimension, fallback)
        price = picousd_from_usd(prices[dimension], param=f"{param}.{dimension}")
        if price < 0:
            raise InvalidRequest("A price cannot be negative.", param=f"{param}.{dimension}")
        amounts[dimension] = price
    shown = {dimension: prices[dimension] for dimension in PUBLIC_PRICES}
    return Pricing(**amounts, declared=shown)


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """The most input tokens that things other than text take. None: up to the whole context. The
    defaults are the largest that any published family has."""

    # GPT-4o mini: eight tiles.
    image: int | None = 48_169
    file: int | None = None
    audio: int | None = None
    video: int | None = None
    # What a template writes around the conversation, and before the descriptions of tools (Claude
    # Opus 4.7). Both count where no tokenizer is asked.
    template: int = 16
    tools: int = 804


DEFAULT_TOKEN_BOUNDS = TokenBounds()


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the catalogue."""

    id: str
    backend: str
    upstream_model: str
    owned_by: str
    name: str
    display_name: str
    created: int
    context_length: int
    max_output_length: int
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    quantization: str
    supported_sampling_parameters: tuple[str, ...]
    supported_features: tuple[str, ...]
    sampling_limits: dict[str, Any]
    sampling_limits_revision: str
    required_checks: tuple[str, ...]
    is_ready: bool
    pricing: Pricing
    options: dict[str, str]
    # The bounds of the model's backend; None if the backend has none.
    schema_bounds: SchemaBounds | None = None
    token_bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS
    messages: MessagesBehavior = DEFAULT_MESSAGES_BEHAVIOR
    # Pages that a web search finds are charged as input, beside the price of the search.
    searches_are_input: bool = False
    # The backend's field that keeps prefix caches apart; empty where it has none.
    cache_salt_field: str = ""
    # Projects share the backend's prefix cache: only a salt that a caller sends is passed on.
    shares_cache: bool = False
    # The backend may be given addresses of media that it has to fetch.
    allows_remote_media: bool = True

    @property
    def isolates_cache(self) -> bool:
        return bool(self.cache_salt_field) and not self.shares_cache


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Whether an organization may use a model, and which checks it still has to pass."""

    required_checks: tuple[str, ...]
    missing_requirements: tuple[str, ...]
    available: bool
    locked: bool


def model_access(model: Model, checks: frozenset[str]) -> ModelAccess:
    missing = tuple(check for check in model.required_checks if check not in checks)
    return ModelAccess(
        required_checks=model.required_checks,
        missing_requirements=missing,
        available=model.is_ready and not missing,
        locked=bool(missing),
    )


class Catalog:
    """The models by id. A catalogue never changes; a reload makes a new one."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self.models = models
        self._by_id = {model.id: model for model in models}
        assert len(self._by_id) == len(models), "model ids are unique"

    def find(self, model_id: str, *, param: str | None = None) -> Model:
        model = self._by_id.get(model_id)
        if model is None:
            raise ModelNotFound(f"There is no model {model_id[:200]!r}.", param=param)
        return model
