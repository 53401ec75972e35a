"""What a backend says a call has used, read once and normalised."""

from typing import Any

import msgspec

_COUNT_MAX = 2**53


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What the backend says it used. Counts are not negative and add up: `read_usage` saw to it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # The details as the backend wrote them, for callers that read more than the counts above.
    prompt_details: dict[str, Any] | None = None
    completion_details: dict[str, Any] | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def read_usage(reported: object) -> Usage | None:
    """The usage in a backend's report, or None where it is absurd: not a count, negative,
    fractional, beyond any context, or a sum that does not add up."""
    if not isinstance(reported, dict):
        return None
    prompt = _count(reported.get("prompt_tokens"))
    completion = _count(reported.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    if "total_tokens" in reported and reported["total_tokens"] != prompt + completion:
        return None
    prompt_details = _details(reported.get("prompt_tokens_details"))
    completion_details = _details(reported.get("completion_tokens_details"))
    cached = _count((prompt_details or {}).get("cached_tokens", 0) or 0)
    reasoning = _count((completion_details or {}).get("reasoning_tokens", 0) or 0)
    if cached is None or cached > prompt or reasoning is None or reasoning > completion:
        return None
    return Usage(prompt, completion, cached, reasoning, prompt_details, completion_details)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _COUNT_MAX:
        return None
    return value


def _details(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
