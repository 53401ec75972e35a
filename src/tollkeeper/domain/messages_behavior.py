"""Defines a model's settings for requests in its provider's own protocol (Messages, Gemini,
Converse)."""

from dataclasses import dataclass
from enum import StrEnum


class PromptCaching(StrEnum):
    """Tells who marks the parts of a prompt that the provider should cache. The provider charges
    for writing to its cache."""

    # Neither the client nor the gateway: a request with marks is rejected.
    OFF = "off"
    # The client, with `cache_control` in parts and tools.
    CALLER = "caller"
    # The gateway, for five minutes or for an hour, unless the client has marked parts itself.
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class ThinkingStyle(StrEnum):
    """Tells how a request asks the model to reason."""

    # The request contains an effort, and the model decides how much it reasons within that effort.
    ADAPTIVE = "adaptive"
    # The request contains a number of tokens, as models before Claude 4.6 and Gemini 3 need it.
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class MessagesBehavior:
    caching: PromptCaching = PromptCaching.CALLER
    thinking: ThinkingStyle = ThinkingStyle.ADAPTIVE
    # The beta flags that are forwarded to the backend if the client sends them.
    beta_flags: tuple[str, ...] = ()
    # Whether all backends of the model read and write the blocks of the provider's web searches.
    has_search_blocks: bool = False


DEFAULT_MESSAGES_BEHAVIOR = MessagesBehavior()
