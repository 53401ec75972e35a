"""Defines the model catalogue: models, their prices and features, and an organization's access to
them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tollkeeper.domain.errors import ModelNotFound
from tollkeeper.domain.messages_behavior import DEFAULT_MESSAGES_BEHAVIOR, MessagesBehavior
from tollkeeper.domain.pricing import PriceChange, Pricing
from tollkeeper.domain.schema_size import SchemaBounds


class Feature(StrEnum):
    """Lists the features that a model may have. A request with an option that needs a missing
    feature is answered with 501."""

    TOOLS = "tools"
    JSON_MODE = "json_mode"
    STRUCTURED_OUTPUTS = "structured_outputs"
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    WEB_SEARCH = "web_search"


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Contains the maximum input tokens for one item of each kind of content. None means that one
    item may fill the whole context. The defaults are the highest values of all published model
    families."""

    # GPT-4o mini has the highest value, for an image of eight tiles.
    image: int | None = 48_169
    file: int | None = None
    audio: int | None = None
    video: int | None = None
    # The tokens that the model reads as the results of one web search.
    web_search: int | None = None
    # The number of searches for which every call reserves credit, because the model may search even
    # if the request does not ask for a search.
    unrequested_searches_max: int = 0
    # Whether the model searches, adds context or runs tools although the request does not ask for
    # it, or the prompt has no known limit. Then a call may cost much more than its hold.
    unbounded: bool = False
    # Whether the backend is told how many searches a request allows.
    limits_searches: bool = False
    # Whether the model reads the whole prompt again after each search. Each reading is then
    # charged.
    search_rereads_prompt: bool = False
    # Whether each byte of text counts as one token. Otherwise the tokens are estimated. Only used
    # if no tokenizer counts the prompt.
    text_by_bytes: bool = False
    # The tokens that a chat template adds around the conversation (`template`), and in front of
    # tool descriptions (`tools`). Both are only used if no tokenizer counts the prompt. By
    # measurement, templates with a system message of their own add up to 72 tokens (SmolLM2) to
    # short prompts. Claude Opus 4.7 adds the most tokens for tools.
    template: int = 96
    tools: int = 804


DEFAULT_TOKEN_BOUNDS = TokenBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Describes one entry of the catalogue."""

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
    # The prices that apply before the first price change.
    pricing: Pricing
    options: dict[str, str] = field(default_factory=dict)
    # The limits that the model's backend has for JSON schemas; None means no limits.
    schema_bounds: SchemaBounds | None = None
    token_bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS
    messages: MessagesBehavior = DEFAULT_MESSAGES_BEHAVIOR
    # The backend's request field for the salt that separates prefix caches; empty if the backend
    # has no such field.
    cache_salt_field: str = ""
    # Whether the backend may receive URLs of media, which it then has to fetch.
    allows_remote_media: bool = True
    # Whether the backend's protocol joins adjacent turns of one role into one message, so that a model
    # may read their texts without a separator.
    joins_turns: bool = False
    # Whether the backend applies the output limit of a request to reasoning too.
    bounds_reasoning: bool = True
    # Whether the model reasons, so that the backend may bill reasoning that the client does not
    # see.
    reasons: bool = False
    # Whether the backend generates and bills the whole answer, even if the gateway stops reading it.
    is_billed_to_end: bool = False
    # The fee in picousd for a request that offers a tool run by the provider, by the tool's name.
    tool_prices: dict[str, int] = field(default_factory=dict)

    # The price changes in chronological order.
    price_changes: tuple[PriceChange, ...] = ()
    # The backends that may serve the model, if there are several; the first is also in `backend`.
    routes: tuple["Route", ...] = ()
    # Whether an answer may contain audio or images.
    writes_audio: bool = field(init=False)
    writes_images: bool = field(init=False)
    # Whether an answer may have more tokens than the request allows: the limit does not apply to
    # images or, on some backends, to reasoning.
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
        """Returns the names of all backends that may serve the model."""
        return tuple(model.backend for model in self.by_backend)

    @property
    def by_backend(self) -> tuple["Model", ...]:
        """Returns one `Model` for each backend that may serve the model, with that backend's model
        name and prices."""
        return tuple(route.model for route in self.routes) or (self,)

    def served_by(self, backend: str) -> "Model":
        """Returns the model as this backend serves it."""
        return next((model for model in self.by_backend if model.backend == backend), self)

    @property
    def all_prices(self) -> tuple[Pricing, ...]:
        """Returns the prices of every backend that may serve the model, before and after each price
        change."""
        return tuple(
            pricing
            for model in self.by_backend
            for pricing in (model.pricing, *(change.pricing for change in model.price_changes))
        )

    @property
    def isolates_cache(self) -> bool:
        return bool(self.cache_salt_field)

    def pricing_at(self, now: int) -> Pricing:
        """Returns the prices for a call that is admitted at the time `now` (Unix seconds)."""
        for change in reversed(self.price_changes):
            if change.valid_from <= now:
                return change.pricing
        return self.pricing


@dataclass(frozen=True, slots=True)
class Route:
    """Describes one of several backends of a model."""

    # The model as this backend serves it: with the backend's name for the model, its prices, and
    # the features that its protocol supports.
    model: Model
    # Routes with a lower order are tried first. Routes with the same order share calls by weight.
    order: int
    weight: float


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Tells whether a caller may use a model, and which checks the caller's organization still has
    to pass."""

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
    """Contains all models. A catalogue never changes; a reload of the settings creates a new
    one."""

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
        """Returns the first model for which the backend uses the name `upstream_model`; None if
        there is none."""
        return self._by_upstream.get((backend, upstream_model))
