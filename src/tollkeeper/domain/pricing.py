"""What a call may cost at most, and what it did cost. Integers of 10^-12 USD only."""

import msgspec

from tollkeeper.domain.catalog import Pricing
from tollkeeper.domain.usage import Usage


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The most that a call can use."""

    prompt_tokens: int
    choices: int
    output_tokens_each: int
    images: int
    web_searches: int = 0


class Cost(msgspec.Struct, frozen=True, gc=False):
    """What a call cost, by price dimension."""

    by_dimension: dict[str, int]

    @property
    def total_picousd(self) -> int:
        return sum(self.by_dimension.values())


def hold_picousd(pricing: Pricing, bounds: Bounds) -> int:
    """The upper bound of the cost: every completion, every token at its dearest."""
    assert min(bounds.prompt_tokens, bounds.images) >= 0
    assert min(bounds.choices, bounds.output_tokens_each) >= 1
    prompt_price = max(
        pricing.prompt,
        pricing.input_cache_read,
        pricing.input_cache_write,
        pricing.input_cache_write_1h,
    )
    return (
        prompt_price * bounds.prompt_tokens
        + pricing.completion * bounds.choices * bounds.output_tokens_each
        + pricing.image * bounds.images
        + pricing.web_search * bounds.web_searches
        + pricing.request
    )


def cost_of(pricing: Pricing, usage: Usage, images: int) -> Cost:
    """Prompt tokens that were read from a cache or written to one cost the price of that."""
    assert usage.uncached_tokens >= 0
    written = (
        pricing.input_cache_write * usage.cache_write_tokens
        + pricing.input_cache_write_1h * usage.cache_write_1h_tokens
    )
    return Cost(
        {
            "prompt": pricing.prompt * usage.uncached_tokens,
            "completion": pricing.completion * usage.completion_tokens,
            "input_cache_read": pricing.input_cache_read * usage.cached_tokens,
            "input_cache_write": written,
            "web_search": pricing.web_search * usage.web_searches,
            "image": pricing.image * images,
            "request": pricing.request,
        }
    )
