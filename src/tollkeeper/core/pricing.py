"""Price dimensions and a model's prices, and what a call costs at most and in fact. Amounts are picousd
(10^-12 USD). `CONTRIBUTING.md` explains how to add a dimension."""

from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec

from tollkeeper.core.usage import Usage

# OpenAI accepts and reports both names of its priority tier.
_OTHER_TIER_NAMES = {"fast": "priority", "priority": "fast"}


@dataclass(frozen=True, slots=True)
class PriceDimension:
    # In settings, prices and line items.
    name: str
    # Of `reservations`, with the price that the hold used; "": none.
    column: str
    # In the price list genai-prices; "": not there.
    listed_as: str = ""
    # Such prices depend on prompt length and service tier.
    per_token: bool = True
    # Clients see it in the model list.
    is_public: bool = False
    # Whose price applies if none is declared. Without one, undeclared usage is free.
    fallback: str = ""
    # In cost reports, if it differs from the name.
    line_item: str = ""


PRICE_DIMENSIONS = (
    PriceDimension("prompt", "price_prompt", "input_mtok", is_public=True),
    PriceDimension("completion", "price_completion", "output_mtok", is_public=True),
    PriceDimension("image", "price_image", per_token=False, is_public=True),
    PriceDimension("request", "price_request", "requests_kcount", per_token=False, is_public=True),
    PriceDimension(
        *("input_cache_read", "price_cache_read", "cache_read_mtok"),
        is_public=True,
        fallback="prompt",
    ),
    PriceDimension("input_cache_write", "price_cache_write", "cache_write_mtok", fallback="prompt"),
    PriceDimension(
        *("input_cache_write_1h", "price_cache_write_1h", "cache_write_1h_mtok"),
        fallback="input_cache_write",
        line_item="input_cache_write",
    ),
    PriceDimension("web_search", "price_web_search", "web_searches_kcount", per_token=False),
    PriceDimension("input_audio", "price_input_audio", "input_audio_mtok", fallback="prompt"),
    PriceDimension(
        "output_audio", "price_output_audio", "output_audio_mtok", fallback="completion"
    ),
    # No column: if the output may be images, a hold's completion price is the higher of both.
    PriceDimension("output_image", "", "output_image_mtok", fallback="completion"),
)
PRICE_NAMES = tuple(dimension.name for dimension in PRICE_DIMENSIONS)
PUBLIC_PRICES = tuple(dimension.name for dimension in PRICE_DIMENSIONS if dimension.is_public)
# Each is a column of settlements; the last one is for costs that an operator enters.
LINE_ITEMS = (
    *dict.fromkeys(dimension.line_item or dimension.name for dimension in PRICE_DIMENSIONS),
    "other",
)


@dataclass(frozen=True, slots=True)
class PriceVariant:
    """For prompts of at least `from_tokens` tokens. The tier None is every tier without prices of its own."""

    service_tier: str | None
    from_tokens: int
    prices: "Pricing"


@dataclass(frozen=True, slots=True)
class Pricing:
    """In picousd per token, image, search or request. `declared` has the public ones as the settings' decimal
    strings."""

    prompt: int
    completion: int
    image: int
    request: int
    input_cache_read: int
    declared: dict[str, str] = field(compare=False, repr=False)
    # Not public from here on.
    input_cache_write: int = 0
    input_cache_write_1h: int = 0
    web_search: int = 0
    input_audio: int = 0
    output_audio: int = 0
    output_image: int = 0
    # Service tiers and prompt lengths with prices of their own.
    variants: tuple[PriceVariant, ...] = ()
    # In which the backend answers a request that names none; None: in any.
    unasked_service_tier: str | None = None
    # For holds: the highest price of an input token that isn't audio, what audio input adds to that, and what
    # audio output adds to the completion price.
    dearest_input: int = field(init=False, compare=False, repr=False)
    extra_input_audio: int = field(init=False, compare=False, repr=False)
    extra_output_audio: int = field(init=False, compare=False, repr=False)
    # For holds: images, searches or audio cost more than their tokens.
    charges_media: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        dearest_input = max(
            self.prompt, self.input_cache_read, self.input_cache_write, self.input_cache_write_1h
        )
        set_field = object.__setattr__
        set_field(self, "dearest_input", dearest_input)
        set_field(self, "extra_input_audio", max(0, self.input_audio - dearest_input))
        set_field(self, "extra_output_audio", max(0, self.output_audio - self.completion))
        extra = (self.image, self.web_search, self.extra_input_audio, self.extra_output_audio)
        set_field(self, "charges_media", any(extra))

    def applying(self, service_tier: str | None, prompt_tokens: int) -> "Pricing":
        """For an answer in this tier. `prompt_tokens` is all input, cached or not. An undeclared tier has the
        ordinary prices."""
        if not self.variants:
            return self
        tier = self._declared_tier(service_tier)
        found, from_tokens = self, -1
        for variant in self.variants:
            if variant.service_tier == tier and from_tokens < variant.from_tokens <= prompt_tokens:
                found, from_tokens = variant.prices, variant.from_tokens
        return found

    def possible(self, asked_tier: str | None, prompt_tokens: int) -> "tuple[Pricing, ...]":
        """All that may apply up to this many prompt tokens. A backend answers in the asked tier or in the
        ordinary one."""
        if not self.variants:
            return (self,)
        tier = asked_tier or self.unasked_service_tier
        declared_tier = self._declared_tier(tier)
        return (
            self,
            *(
                variant.prices
                for variant in self.variants
                if variant.from_tokens <= prompt_tokens
                and (tier is None or variant.service_tier in (None, declared_tier))
            ),
        )

    def with_fee(self, fee: int) -> "Pricing":
        return replace(
            self,
            request=self.request + fee,
            variants=tuple(
                replace(variant, prices=variant.prices.with_fee(fee)) for variant in self.variants
            ),
        )

    def _declared_tier(self, service_tier: str | None) -> str | None:
        """The tier's name in the settings; None: the ordinary prices."""
        if service_tier is None:
            return None
        declared = {variant.service_tier for variant in self.variants}
        if service_tier in declared:
            return service_tier
        other_name = _OTHER_TIER_NAMES.get(service_tier)
        return other_name if other_name in declared else None


@dataclass(frozen=True, slots=True)
class PriceChange:
    """Declared in advance, from a time (Unix seconds)."""

    valid_from: int
    pricing: Pricing


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The most that a call may use."""

    # Of all prompts that are sent: a fanned-out call sends its prompt `n` times.
    prompt_tokens: int
    choices: int
    output_tokens_each: int
    # In all prompts that are sent.
    images: int = 0
    web_searches: int = 0
    # What may be audio of the two counts above.
    input_audio_tokens: int = 0
    output_audio_tokens_each: int = 0
    writes_images: bool = False
    # How often the prompt is sent. Its own length determines its prices.
    prompts: int = 1
    # That the request names.
    service_tier: str | None = None


def hold_picousd(pricing: Pricing, bounds: Bounds) -> int:
    """All completions have the maximum length, and each token the highest price that may apply
    (`Pricing.possible`)."""
    assert min(bounds.prompt_tokens, bounds.images) >= 0
    assert min(bounds.choices, bounds.output_tokens_each, bounds.prompts) >= 1
    if pricing.variants or bounds.writes_images:
        pricing = dearest_prices(pricing, bounds)
    return hold_at(pricing, bounds)


def dearest_prices(pricing: Pricing, bounds: Bounds) -> Pricing:
    """At which a call within the bounds costs most. If the output may be images, the completion price is the
    higher of both."""
    tokens_per_prompt = -(-bounds.prompt_tokens // bounds.prompts)
    possible = pricing.possible(bounds.service_tier, tokens_per_prompt)
    if bounds.writes_images:
        possible = tuple(map(_with_dearer_output, possible))
    return max(possible, key=lambda prices: hold_at(prices, bounds))


def _with_dearer_output(prices: Pricing) -> Pricing:
    if prices.output_image <= prices.completion:
        return prices
    return replace(prices, completion=prices.output_image)


def hold_at(prices: Pricing, bounds: Bounds) -> int:
    """At these prices, whatever their variants."""
    amount = (
        prices.dearest_input * bounds.prompt_tokens
        + prices.completion * bounds.choices * bounds.output_tokens_each
        + prices.request
    )
    if prices.charges_media:
        amount += (
            prices.extra_input_audio * bounds.input_audio_tokens
            + prices.extra_output_audio * bounds.choices * bounds.output_audio_tokens_each
            + prices.image * bounds.images
            + prices.web_search * bounds.web_searches
        )
    return amount


# Counts with prices of their own, 0 in most usages.
_separately_priced = attrgetter(
    *("cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "web_searches"),
    *("input_audio_tokens", "output_audio_tokens", "output_image_tokens"),
)


def cost_of(pricing: Pricing, usage: Usage, images: int) -> dict[str, int]:
    """In picousd, by line item. The answers of a sum are priced one by one, because prices depend on the
    prompt and tier of the single answer. Cached, audio and image tokens have prices of their own."""
    if usage.parts:
        return _cost_of_parts(pricing, images, usage.parts)
    if pricing.variants:
        pricing = pricing.applying(usage.service_tier, usage.prompt_tokens)
    cost = {
        "prompt": pricing.prompt * usage.prompt_tokens,
        "completion": pricing.completion * usage.completion_tokens,
        "request": pricing.request,
    }
    if images:
        cost["image"] = pricing.image * images
    if any(_separately_priced(usage)):
        text_tokens = usage.uncached_tokens - usage.input_audio_tokens
        output_tokens = usage.completion_tokens - usage.output_audio_tokens
        output_tokens -= usage.output_image_tokens
        assert text_tokens >= 0 <= output_tokens
        cost["prompt"] = pricing.prompt * text_tokens
        cost["completion"] = pricing.completion * output_tokens
        amounts = {
            "input_cache_read": pricing.input_cache_read * usage.cached_tokens,
            "input_cache_write": pricing.input_cache_write * usage.cache_write_tokens
            + pricing.input_cache_write_1h * usage.cache_write_1h_tokens,
            "web_search": pricing.web_search * usage.web_searches,
            "input_audio": pricing.input_audio * usage.input_audio_tokens,
            "output_audio": pricing.output_audio * usage.output_audio_tokens,
            "output_image": pricing.output_image * usage.output_image_tokens,
        }
        cost |= {name: amount for name, amount in amounts.items() if amount}
    return cost


def _cost_of_parts(pricing: Pricing, images: int, parts: tuple[Usage, ...]) -> dict[str, int]:
    """Except the price per request: the highest is charged once per call."""
    total: dict[str, int] = {}
    for position, part in enumerate(parts):
        # `images` is the sum; each part got the same ones.
        part_images = images // len(parts) + (position < images % len(parts))
        for dimension, amount in cost_of(pricing, part, part_images).items():
            if dimension == "request":
                total[dimension] = max(total.get(dimension, 0), amount)
            else:
                total[dimension] = total.get(dimension, 0) + amount
    return total
