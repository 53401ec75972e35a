"""Models, their prices and features, and an organization's access to them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tollkeeper.core.errors import ModelNotFound
from tollkeeper.core.messages_behavior import DEFAULT_MESSAGES_BEHAVIOR, MessagesBehavior
from tollkeeper.core.pricing import PriceChange, Pricing
from tollkeeper.core.schema_size import SchemaBounds


class Feature(StrEnum):
    """A request that needs a missing feature gets 501."""

    TOOLS = "tools"
    JSON_MODE = "json_mode"
    STRUCTURED_OUTPUTS = "structured_outputs"
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    WEB_SEARCH = "web_search"


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """The most input tokens of one item of content; None: it may fill the whole context. The defaults are the
    highest values of all published model families."""

    # GPT-4o mini, for an image of eight tiles.
    image: int | None = 48_169
    file: int | None = None
    audio: int | None = None
    video: int | None = None
    # The results of one web search.
    web_search: int | None = None
    # Every call reserves credit for these, because the model may search unasked.
    unrequested_searches_max: int = 0
    # The model searches, adds context or runs tools unasked, or the prompt has no known limit. A call may
    # then cost much more than its hold.
    unbounded: bool = False
    # The backend is told how many searches a request allows.
    limits_searches: bool = False
    # The model reads, and is paid for, the whole prompt again after each search.
    search_rereads_prompt: bool = False
    # Each byte is a token, instead of an estimate. Only without a tokenizer.
    text_by_bytes: bool = False
    # What a chat template adds around the conversation, and in front of tools. Only without a tokenizer.
    # Measured: up to 72 tokens for templates with a system message of their own (SmolLM2); Claude Opus 4.7
    # adds the most for tools.
    template: int = 96
    tools: int = 804


DEFAULT_TOKEN_BOUNDS = TokenBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    backend: str
    upstream_model: str
    owned_by: str = ""
    # Empty: the id. The display name is then this name.
    name: str = ""
    display_name: str = ""
    created: int = 0
    context_length: int
    max_output_length: int
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    quantization: str = ""
    supported_sampling_parameters: tuple[str, ...] = ()
    supported_features: tuple[str, ...] = ()
    sampling_limits: dict[str, Any] = field(default_factory=dict)
    sampling_limits_revision: str = ""
    required_checks: tuple[str, ...] = ()
    is_ready: bool = True
    # Before the first price change.
    pricing: Pricing
    options: dict[str, str] = field(default_factory=dict)
    # Of the backend; None: no limits.
    schema_bounds: SchemaBounds | None = None
    token_bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS
    messages: MessagesBehavior = DEFAULT_MESSAGES_BEHAVIOR
    # The backend's field for the salt that separates prefix caches, or "".
    cache_salt_field: str = ""
    # The backend then has to fetch the media.
    allows_remote_media: bool = True
    # The protocol joins adjacent turns of one role into one message, so a model may read their texts without
    # a separator.
    joins_turns: bool = False
    # The output limit of a request covers reasoning too.
    bounds_reasoning: bool = True
    # So the backend may bill reasoning that the client doesn't see.
    reasons: bool = False
    # The backend generates and bills the whole answer even if the gateway stops reading.
    is_billed_to_end: bool = False
    # In picousd, for a request that offers a tool of this name that the provider runs.
    tool_prices: dict[str, int] = field(default_factory=dict)

    # In chronological order.
    price_changes: tuple[PriceChange, ...] = ()
    # If several backends may serve the model; the first is also in `backend`.
    routes: tuple["Route", ...] = ()
    writes_audio: bool = field(init=False)
    writes_images: bool = field(init=False)
    # The limit doesn't apply to images or, on some backends, to reasoning.
    exceeds_output_limit: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.id)
        object.__setattr__(self, "display_name", self.display_name or self.name)
        object.__setattr__(self, "writes_audio", "audio" in self.output_modalities)
        object.__setattr__(self, "writes_images", "image" in self.output_modalities)
        exceeds = self.writes_images or (self.reasons and not self.bounds_reasoning)
        object.__setattr__(self, "exceeds_output_limit", exceeds)

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(model.backend for model in self.by_backend)

    @property
    def by_backend(self) -> tuple["Model", ...]:
        """One `Model` for each backend that may serve it."""
        return tuple(route.model for route in self.routes) or (self,)

    def served_by(self, backend: str) -> "Model":
        return next((model for model in self.by_backend if model.backend == backend), self)

    @property
    def all_prices(self) -> tuple[Pricing, ...]:
        """Of every backend, before and after each price change."""
        return tuple(
            pricing
            for model in self.by_backend
            for pricing in (model.pricing, *(change.pricing for change in model.price_changes))
        )

    @property
    def isolates_cache(self) -> bool:
        return bool(self.cache_salt_field)

    def pricing_at(self, now: int) -> Pricing:
        for change in reversed(self.price_changes):
            if change.valid_from <= now:
                return change.pricing
        return self.pricing


@dataclass(frozen=True, slots=True)
class Route:
    # With the backend's name for it, its prices, and what its protocol supports.
    model: Model
    # Lower orders first; the same order shares calls by weight.
    order: int
    weight: float


@dataclass(frozen=True, slots=True)
class ModelAccess:
    required_checks: tuple[str, ...]
    missing_requirements: tuple[str, ...]
    available: bool
    locked: bool


def model_access(model: Model, checks: frozenset[str], *, is_allowed: bool = True) -> ModelAccess:
    missing = tuple(check for check in model.required_checks if check not in checks)
    return ModelAccess(
        required_checks=model.required_checks,
        missing_requirements=missing,
        available=is_allowed and model.is_ready and not missing,
        locked=bool(missing),
    )


class Catalog:
    """Never changes: a reload creates a new one."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self.models = models
        self._by_id = {model.id: model for model in models}
        assert len(self._by_id) == len(models), "model ids are unique"
        self._by_upstream: dict[tuple[str, str], Model] = {}
        for model in models:
            for served in model.by_backend:
                self._by_upstream.setdefault((served.backend, served.upstream_model), served)

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._by_id

    def find(self, model_id: str, *, param: str | None = None) -> Model:
        model = self._by_id.get(model_id)
        if model is None:
            raise ModelNotFound(f"There is no model {model_id[:200]!r}.", param=param)
        return model

    def find_upstream(self, backend: str, upstream_model: str) -> Model | None:
        return self._by_upstream.get((backend, upstream_model))
