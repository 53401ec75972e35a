"""How a model behaves on its provider's own wire, where models of one provider differ from each other."""

from dataclasses import dataclass
from enum import StrEnum


class PromptCaching(StrEnum):
    """Who marks the parts of a prompt that the provider caches. Writing to a cache has a price."""

    # No one. A request with marks is refused.
    OFF = "off"
    # The caller, with `cache_control` in parts and tools.
    CALLER = "caller"
    # The gateway marks every prompt without marks, for five minutes or for an hour.
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class ThinkingStyle(StrEnum):
    """How the model is asked to reason."""

    # It decides for itself how much, within an effort.
    ADAPTIVE = "adaptive"
    # It is given a number of tokens, as models before Claude 4.6 and Gemini 3 need.
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class MessagesBehavior:
    caching: PromptCaching = PromptCaching.CALLER
    thinking: ThinkingStyle = ThinkingStyle.ADAPTIVE
    # Beta flags of clients that are sent on to the backend.
    beta_flags: tuple[str, ...] = ()


DEFAULT_MESSAGES_BEHAVIOR = MessagesBehavior()
