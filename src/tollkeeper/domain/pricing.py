"""What a call may cost at most, and what it did cost. Integers of 10^-12 USD only."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tollkeeper.domain.catalog import Pricing
from tollkeeper.domain.usage import Usage


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The most that a call can use."""

    # The sum over all prompts that are sent: a fanned-out call sends one for each completion.
    prompt_tokens: int
    choices: int
    output_tokens_each: int
    images: int
    web_searches: int = 0
    # Those of the tokens above that may be audio.
    input_audio_tokens: int = 0
    output_audio_tokens_each: int = 0
    # Any of the output may be images.
    writes_images: bool = False
    # How often the prompt is sent; each time its own length decides on the price.
    prompts: int = 1
    # The service tier that the request names.
    service_tier: str | None = None


class Cost(msgspec.Struct, frozen=True, gc=False):
    """What a call cost, by price dimension."""

    by_dimension: dict[str, int]

    @property
    def total_picousd(self) -> int:
        return sum(self.by_dimension.values())


def hold_picousd(pricing: Pricing, bounds: Bounds) -> int:
    """The upper bound of the cost: every completion, every token at its dearest, by the dearest of
    the prices that may apply."""
    assert bounds.prompt_tokens >= 0 <= bounds.images
    assert bounds.choices >= 1 <= bounds.output_tokens_each
    assert bounds.prompts >= 1
    if pricing.variants or bounds.writes_images:
        pricing = dearest_prices(pricing, bounds)
    return _hold_at(pricing, bounds)


def dearest_prices(pricing: Pricing, bounds: Bounds) -> Pricing:
    """Returns those of the prices that may apply by which a call within the bounds costs most. If the
    output may be images, the price of the completion is the dearer one of both."""
    each_prompt = -(-bounds.prompt_tokens // bounds.prompts)
    possible = pricing.possible(bounds.service_tier, each_prompt)
    if bounds.writes_images:
        possible = tuple(map(_with_dearer_output, possible))
    return max(possible, key=lambda prices: _hold_at(prices, bounds))


def _with_dearer_output(prices: Pricing) -> Pricing:
    if prices.output_image <= prices.completion:
        return prices
    return replace(prices, completion=prices.output_image)


def _hold_at(prices: Pricing, bounds: Bounds) -> int:
    return (
        prices.dearest_input * bounds.prompt_tokens
        + prices.extra_input_audio * bounds.input_audio_tokens
        + prices.completion * bounds.choices * bounds.output_tokens_each
        + prices.extra_output_audio * bounds.choices * bounds.output_audio_tokens_each
        + prices.image * bounds.images
        + prices.web_search * bounds.web_searches
        + prices.request
    )


def cost_of(pricing: Pricing, usage: Usage, images: int, parts: Sequence[Usage] = ()) -> Cost:
    """The cost by the prices that apply. Where the usage is the sum of several answers, `parts` has
    that of each, because each has the prices of its own prompt and service tier. The request has
    its price once, however many answers were made for it."""
    if not parts:
        return _cost_at(pricing.applying(usage.service_tier, usage.prompt_tokens), usage, images)
    total: dict[str, int] = {}
    for position, part in enumerate(parts):
        # Every part was sent the same images.
        mine = images // len(parts) + (position < images % len(parts))
        prices = pricing.applying(part.service_tier, part.prompt_tokens)
        for dimension, amount in _cost_at(prices, part, mine).by_dimension.items():
            if dimension == "request":
                total[dimension] = max(total.get(dimension, 0), amount)
            else:
                total[dimension] = total.get(dimension, 0) + amount
    return Cost(total)


def _cost_at(prices: Pricing, usage: Usage, images: int) -> Cost:
    """Prompt tokens that were read from a cache or written to one cost the price of that, and so do
    tokens of audio and of images."""
    text_tokens = usage.uncached_tokens - usage.input_audio_tokens
    output_tokens = usage.completion_tokens - usage.output_audio_tokens - usage.output_image_tokens
    assert text_tokens >= 0 <= output_tokens
    by_dimension = {
        "prompt": prices.prompt * text_tokens,
        "completion": prices.completion * output_tokens,
        "input_cache_read": prices.input_cache_read * usage.cached_tokens,
        "input_cache_write": prices.input_cache_write * usage.cache_write_tokens
        + prices.input_cache_write_1h * usage.cache_write_1h_tokens,
        "web_search": prices.web_search * usage.web_searches,
        "image": prices.image * images,
        "request": prices.request,
    }
    if usage.input_audio_tokens:
        by_dimension["input_audio"] = prices.input_audio * usage.input_audio_tokens
    if usage.output_audio_tokens:
        by_dimension["output_audio"] = prices.output_audio * usage.output_audio_tokens
    if usage.output_image_tokens:
        by_dimension["output_image"] = prices.output_image * usage.output_image_tokens
    return Cost(by_dimension)
