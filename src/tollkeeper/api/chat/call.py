"""Checks the fields of a chat request that depend on each other."""

from tollkeeper.api.wire import chat as wire
from tollkeeper.domain.errors import InvalidRequest


def hides_reasoning(body: wire.ChatRequest) -> bool:
    return body.include_reasoning is False or (
        body.reasoning is not None and body.reasoning.exclude is True
    )


def check_combinations(body: wire.ChatRequest) -> None:
    """Rejects `store: true`, fields that exclude each other, and fields that need another field which
    is missing."""
    if body.store:
        raise InvalidRequest(
            "The gateway does not store completions: store must be false.", param="store"
        )
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest(
            "Send exactly one of max_tokens and max_completion_tokens.", param="max_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    if body.reasoning is not None:
        effort, flat_effort = body.reasoning.effort, body.reasoning_effort
        if effort is not None and flat_effort is not None and effort != flat_effort:
            raise InvalidRequest(
                "reasoning.effort and reasoning_effort differ: send one of them.",
                param="reasoning_effort",
            )
        if body.reasoning.max_tokens is not None and (effort or flat_effort) is not None:
            raise InvalidRequest(
                "Send an effort or reasoning.max_tokens, not both.", param="reasoning.max_tokens"
            )
