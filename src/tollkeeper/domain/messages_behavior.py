"""Describes how models of one provider differ on the provider's own wire."""

from dataclasses import dataclass
from enum import StrEnum


class PromptCaching(StrEnum):
    """Tells who marks the parts of a prompt that the provider caches. Writing to a cache has a
    price."""

    # A request with marks is rejected.
    OFF = "off"
    # The client marks with `cache_control` in parts and tools.
    CALLER = "caller"
    # The gateway marks every prompt without marks, for five minutes or for an hour.
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class ThinkingStyle(StrEnum):
    """Tells how the model is asked to reason."""

    # The model decides how much, within an effort.
    ADAPTIVE = "adaptive"
    # The model gets a number of tokens, as models before Claude 4.6 and Gemini 3 need.
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class MessagesBehavior:
    caching: PromptCaching = PromptCaching.CALLER
    thinking: ThinkingStyle = ThinkingStyle.ADAPTIVE
    # Client beta flags that are forwarded to the backend.
    beta_flags: tuple[str, ...] = ()


DEFAULT_MESSAGES_BEHAVIOR = MessagesBehavior()
