"""A model's settings for its provider's own protocol (Messages, Gemini, Converse)."""

from dataclasses import dataclass
from enum import StrEnum


class PromptCaching(StrEnum):
    """Who marks what the provider caches, and charges for writing."""

    # Nobody: a request with marks is rejected.
    OFF = "off"
    # By `cache_control` in parts and tools.
    CALLER = "caller"
    # The gateway, unless the client has marked parts itself.
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class ThinkingStyle(StrEnum):
    # By an effort, within which the model decides.
    ADAPTIVE = "adaptive"
    # By a number of tokens, for models before Claude 4.6 and Gemini 3.
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class MessagesBehavior:
    caching: PromptCaching = PromptCaching.CALLER
    thinking: ThinkingStyle = ThinkingStyle.ADAPTIVE
    # Forwarded if the client sends them.
    beta_flags: tuple[str, ...] = ()
    # All backends read and write the blocks of web searches.
    has_search_blocks: bool = False


DEFAULT_MESSAGES_BEHAVIOR = MessagesBehavior()
