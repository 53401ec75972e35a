"""The model catalogue: models, their prices and features, and an organization's access to them."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tollkeeper.domain.errors import ModelNotFound
from tollkeeper.domain.messages_behavior import DEFAULT_MESSAGES_BEHAVIOR, MessagesBehavior
from tollkeeper.domain.schema_size import SchemaBounds

# OpenAI has renamed its priority tier, and takes and tells either name.
_SAME_TIERS = {"fast": "priority", "priority": "fast"}


class Feature(StrEnum):
    """Features of models. An option that needs a feature which the model lacks is a 501."""

    TOOLS = "tools"
    JSON_MODE = "json_mode"
    STRUCTURED_OUTPUTS = "structured_outputs"
    LOGPROBS = "logprobs"
    REASONING = "reasoning"
    WEB_SEARCH = "web_search"


@dataclass(frozen=True, slots=True)
class PriceVariant:
    """Prices that apply instead of the ordinary ones: to an answer of one service tier (None: of
    any tier without prices of its own), from a length of the prompt on."""

    service_tier: str | None
    from_tokens: int
    prices: "Pricing"


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
    input_audio: int = 0
    output_audio: int = 0
    output_image: int = 0
    # Every combination of service tier and length of the prompt that has prices of its own.
    variants: tuple[PriceVariant, ...] = ()
    # The service tier of answers to requests that name none; None: any of those with prices.
    unasked_service_tier: str | None = None
    # For holds: the dearest price of an input token that is not audio, and how much more than that, and
    # than the completion, a token of audio costs.
    dearest_input: int = field(init=False, compare=False, repr=False)
    extra_input_audio: int = field(init=False, compare=False, repr=False)
    extra_output_audio: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        dearest_input = max(
            self.prompt, self.input_cache_read, self.input_cache_write, self.input_cache_write_1h
        )
        keep = object.__setattr__
        keep(self, "dearest_input", dearest_input)
        keep(self, "extra_input_audio", max(0, self.input_audio - dearest_input))
        keep(self, "extra_output_audio", max(0, self.output_audio - self.completion))

    def applying(self, service_tier: str | None, prompt_tokens: int) -> "Pricing":
        """The prices of an answer. `prompt_tokens` is all of its input, from caches or not. A
        service tier that is not declared has the ordinary prices."""
        if not self.variants:
            return self
        tier = self._declared_tier(service_tier)
        found, from_tokens = self, -1
        for variant in self.variants:
            if variant.service_tier == tier and from_tokens < variant.from_tokens <= prompt_tokens:
                found, from_tokens = variant.prices, variant.from_tokens
        return found

    def possible(self, asked_tier: str | None, prompt_tokens: int) -> "tuple[Pricing, ...]":
        """All prices that may apply to a call whose prompt has at most so many tokens. A request
        that names a service tier is answered in it or in the ordinary one."""
        if not self.variants:
            return (self,)
        tier = asked_tier or self.unasked_service_tier
        named = self._declared_tier(tier)
        return (
            self,
            *(
                variant.prices
                for variant in self.variants
                if variant.from_tokens <= prompt_tokens
                and (tier is None or variant.service_tier in (None, named))
            ),
        )

    def with_fee(self, fee: int) -> "Pricing":
        """The same prices with a higher price per request."""
        return replace(
            self,
            request=self.request + fee,
            variants=tuple(
                replace(variant, prices=variant.prices.with_fee(fee)) for variant in self.variants
            ),
        )

    def _declared_tier(self, service_tier: str | None) -> str | None:
        """The name under which the tier is declared; None where it has the ordinary prices."""
        if service_tier is None:
            return None
        declared = {variant.service_tier for variant in self.variants}
        if service_tier in declared:
            return service_tier
        other_name = _SAME_TIERS.get(service_tier)
        return other_name if other_name in declared else None


@dataclass(frozen=True, slots=True)
class PriceChange:
    """Prices that were declared ahead, and the time (Unix seconds) from which they apply."""

    valid_from: int
    pricing: Pricing


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """The most input tokens that things other than text take. None: up to the whole context. The
    defaults are the largest that any published family has."""

    # GPT-4o mini: eight tiles.
    image: int | None = 48_169
    file: int | None = None
    audio: int | None = None
    video: int | None = None
    # Tokens that the model reads of the results of one web search.
    web_search: int | None = None
    # Searches that a call is held for although nobody asked for any: the model searches on its own.
    searches_unasked: int = 0
    # After each search the model reads the whole prompt again, and all of it is charged.
    search_rereads: bool = False
    # A token for each byte of text, in the place of an estimate. Where no tokenizer is asked.
    text_by_bytes: bool = False
    # What a template writes around the conversation, and before the descriptions of tools (Claude
    # Opus 4.7). Both count where no tokenizer is asked. On short prompts, templates with a system
    # message of their own were seen to add up to 66 tokens (DeepSeek), and 72 (SmolLM2).
    template: int = 96
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
    # The prices before the first of the changes.
    pricing: Pricing
    options: dict[str, str]
    # The bounds of the model's backend; None if the backend has none.
    schema_bounds: SchemaBounds | None = None
    token_bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS
    messages: MessagesBehavior = DEFAULT_MESSAGES_BEHAVIOR
    # The backend's field that keeps prefix caches apart; empty where it has none.
    cache_salt_field: str = ""
    # The backend may be given addresses of media that it has to fetch.
    allows_remote_media: bool = True
    # The output bound that is sent covers reasoning.
    bounds_reasoning: bool = True
    # The model may bill reasoning that the client does not see.
    reasons: bool = False
    # The price in picousd of a request that offers a tool of the provider, by the tool's name.
    tool_prices: dict[str, int] = field(default_factory=dict)

    # In the order of time.
    price_changes: tuple[PriceChange, ...] = ()
    # The backends that may serve the model, where there are several; `backend` is the first.
    routes: tuple["Route", ...] = ()
    # Whether an answer may have audio or images.
    writes_audio: bool = field(init=False)
    writes_images: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "writes_audio", "audio" in self.output_modalities)
        object.__setattr__(self, "writes_images", "image" in self.output_modalities)

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of all backends that may serve the model."""
        return tuple(there.backend for there in self.by_backend)

    @property
    def by_backend(self) -> tuple["Model", ...]:
        """The model as each of its backends serves it."""
        return tuple(route.model for route in self.routes) or (self,)

    @property
    def isolates_cache(self) -> bool:
        return bool(self.cache_salt_field)

    def pricing_at(self, now: int) -> Pricing:
        """The prices of a call that is admitted at this time (Unix seconds)."""
        for change in reversed(self.price_changes):
            if change.valid_from <= now:
                return change.pricing
        return self.pricing


@dataclass(frozen=True, slots=True)
class Route:
    """One of several backends of a model."""

    # The model as this backend has it: its name there, its prices, what its protocol carries.
    model: Model
    # Routes of a lower order are tried first; those of the same order share calls by weight.
    order: int
    weight: int


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Whether a caller may use a model, and which checks its organization still has to pass."""

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
    """The models by id. A catalogue never changes; a reload makes a new one."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self.models = models
        self._by_id = {model.id: model for model in models}
        assert len(self._by_id) == len(models), "model ids are unique"
        self._by_upstream: dict[tuple[str, str], Model] = {}
        for model in models:
            for there in model.by_backend:
                self._by_upstream.setdefault((there.backend, there.upstream_model), there)

    def find(self, model_id: str, *, param: str | None = None) -> Model:
        model = self._by_id.get(model_id)
        if model is None:
            raise ModelNotFound(f"There is no model {model_id[:200]!r}.", param=param)
        return model

    def find_upstream(self, backend: str, upstream_model: str) -> Model | None:
        """Returns the first model that a backend serves under this name of its own."""
        return self._by_upstream.get((backend, upstream_model))
