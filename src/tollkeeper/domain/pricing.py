"""Defines price dimensions and a model's prices, and computes a call's maximum and actual cost.
Amounts are integers of picousd (10^-12 USD).

A price dimension is a quantity with its own price, such as prompt tokens or web searches. A hold is
the maximum cost of a call, reserved before the call is sent. `CONTRIBUTING.md` explains how to add a
price dimension.
"""

from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec

from tollkeeper.domain.usage import Usage

# Maps each name of OpenAI's priority tier to the other. OpenAI accepts and reports both names.
_OTHER_TIER_NAMES = {"fast": "priority", "priority": "fast"}


@dataclass(frozen=True, slots=True)
class PriceDimension:
    # The name in settings, prices and line items.
    name: str
    # The column of table `reservations` with the price that the hold used; empty if there is no
    # column.
    column: str
    # The name in the price list genai-prices; empty if that list does not have this dimension.
    listed_as: str = ""
    # Whether the price is per token. Prices per token depend on prompt length and service tier.
    per_token: bool = True
    # Whether the model list that clients read shows this price.
    is_public: bool = False
    # The dimension whose price applies if the settings do not declare a price for this dimension.
    # If empty, usage without a declared price costs nothing.
    fallback: str = ""
    # The line item in cost reports, if it differs from the name.
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
    # `reservations` has no column for this price. If the output may be images, a hold's completion
    # price is the higher of this price and the completion price.
    PriceDimension("output_image", "", "output_image_mtok", fallback="completion"),
)
PRICE_NAMES = tuple(dimension.name for dimension in PRICE_DIMENSIONS)
PUBLIC_PRICES = tuple(dimension.name for dimension in PRICE_DIMENSIONS if dimension.is_public)
# The line items of a settlement, each of which is a column: one for each price dimension, and one
# for costs that an operator enters.
LINE_ITEMS = (
    *dict.fromkeys(dimension.line_item or dimension.name for dimension in PRICE_DIMENSIONS),
    "other",
)


@dataclass(frozen=True, slots=True)
class PriceVariant:
    """Contains the prices for one service tier, for prompts of at least `from_tokens` tokens. The
    tier None stands for every tier without prices of its own."""

    service_tier: str | None
    from_tokens: int
    prices: "Pricing"


@dataclass(frozen=True, slots=True)
class Pricing:
    """Contains prices in picousd per token, image, search or request. `declared` has the public
    prices as the decimal strings in the settings."""

    prompt: int
    completion: int
    image: int
    request: int
    input_cache_read: int
    declared: dict[str, str] = field(compare=False, repr=False)
    # The following prices are not public.
    input_cache_write: int = 0
    input_cache_write_1h: int = 0
    web_search: int = 0
    input_audio: int = 0
    output_audio: int = 0
    output_image: int = 0
    # Every combination of service tier and prompt length with prices of its own.
    variants: tuple[PriceVariant, ...] = ()
    # The service tier in which the backend answers a request that names no tier. None means that
    # the backend may choose any tier.
    unasked_service_tier: str | None = None
    # For holds: the highest price of an input token that is not audio, the surcharge of an input
    # audio token over that price, and the surcharge of an output audio token over the completion
    # price.
    dearest_input: int = field(init=False, compare=False, repr=False)
    extra_input_audio: int = field(init=False, compare=False, repr=False)
    extra_output_audio: int = field(init=False, compare=False, repr=False)
    # For holds: whether images, searches or audio cost more than the tokens that they produce.
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
        """Returns the prices that apply to an answer in this service tier. `prompt_tokens` counts
        all input, cached or not. A tier that the settings do not declare has the ordinary
        prices."""
        if not self.variants:
            return self
        tier = self._declared_tier(service_tier)
        found, from_tokens = self, -1
        for variant in self.variants:
            if variant.service_tier == tier and from_tokens < variant.from_tokens <= prompt_tokens:
                found, from_tokens = variant.prices, variant.from_tokens
        return found

    def possible(self, asked_tier: str | None, prompt_tokens: int) -> "tuple[Pricing, ...]":
        """Returns all prices that may apply to a call with at most this many prompt tokens. If a
        request names a service tier, the backend answers in that tier or in the ordinary tier."""
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
        """Returns the prices with `fee` added to the price per request."""
        return replace(
            self,
            request=self.request + fee,
            variants=tuple(
                replace(variant, prices=variant.prices.with_fee(fee)) for variant in self.variants
            ),
        )

    def _declared_tier(self, service_tier: str | None) -> str | None:
        """Returns the name under which the settings declare the tier; None if the tier has the
        ordinary prices."""
        if service_tier is None:
            return None
        declared = {variant.service_tier for variant in self.variants}
        if service_tier in declared:
            return service_tier
        other_name = _OTHER_TIER_NAMES.get(service_tier)
        return other_name if other_name in declared else None


@dataclass(frozen=True, slots=True)
class PriceChange:
    """Contains prices that were declared in advance, and the time (Unix seconds) from which they
    apply."""

    valid_from: int
    pricing: Pricing


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Contains the maximum usage of a call."""

    # The sum over all prompts that are sent. A fanned-out call, which asks for `n` completions by
    # `n` calls, sends the prompt `n` times.
    prompt_tokens: int
    choices: int
    # The tokens of each choice.
    output_tokens_each: int
    # The images in all prompts that are sent.
    images: int = 0
    web_searches: int = 0
    # The parts of `prompt_tokens` and `output_tokens_each` that may be audio.
    input_audio_tokens: int = 0
    output_audio_tokens_each: int = 0
    # Whether the output may be images.
    writes_images: bool = False
    # How often the prompt is sent. The length of one sent prompt determines its prices.
    prompts: int = 1
    # The service tier that the request names.
    service_tier: str | None = None


def hold_picousd(pricing: Pricing, bounds: Bounds) -> int:
    """Returns the maximum cost of a call: all completions have the maximum length, and each token
    has the highest price that may apply (`Pricing.possible`)."""
    assert min(bounds.prompt_tokens, bounds.images) >= 0
    assert min(bounds.choices, bounds.output_tokens_each, bounds.prompts) >= 1
    if pricing.variants or bounds.writes_images:
        pricing = dearest_prices(pricing, bounds)
    return hold_at(pricing, bounds)


def dearest_prices(pricing: Pricing, bounds: Bounds) -> Pricing:
    """Returns the prices, among the possible ones, at which a call within the bounds costs most. If
    the output may be images, the completion price is the higher of the completion and image
    prices."""
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
    """Returns the maximum cost of a call if each token has the highest of these prices, whatever
    variants they have."""
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


# Reads the counts that have prices of their own. In most usages, all of them are 0.
_separately_priced = attrgetter(
    *("cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "web_searches"),
    *("input_audio_tokens", "output_audio_tokens", "output_image_tokens"),
)


def cost_of(pricing: Pricing, usage: Usage, images: int) -> dict[str, int]:
    """Computes the cost of a call in picousd, by line item. If `usage` is the sum of several
    answers, the cost of each answer is computed separately, because prices depend on the prompt
    length and service tier of the single answer. Tokens that were read from a cache or written to
    one, audio tokens and image tokens have prices of their own."""
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
    """Adds the costs of several answers. The highest price per request is charged once per call,
    not once per answer."""
    total: dict[str, int] = {}
    for position, part in enumerate(parts):
        # `images` is the sum over all parts. Each part received the same images.
        part_images = images // len(parts) + (position < images % len(parts))
        for dimension, amount in cost_of(pricing, part, part_images).items():
            if dimension == "request":
                total[dimension] = max(total.get(dimension, 0), amount)
            else:
                total[dimension] = total.get(dimension, 0) + amount
    return total
