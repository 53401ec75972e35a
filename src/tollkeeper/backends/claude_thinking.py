"""Writes the request fields that ask a Claude model for reasoning, and seals the reasoning of its
answers. Anthropic's Messages protocol and Amazon Bedrock's Converse protocol both use this.

The provider signs each block of reasoning, and accepts a block in a later request only if the
block is unchanged. So clients get each signed block as one sealed value: the block as a JSON text.
"""

from collections.abc import Callable, Iterator

import msgspec

from tollkeeper.backends.request_fields import REASONING_OPTIONS, asked_reasoning
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call, Finish
from tollkeeper.domain.messages_behavior import ThinkingStyle
from tollkeeper.domain.prompt import FreeObject, Prompt, Reasoning, Role, ToolCall

_THINKING = "thinking"
# The options of client requests that this module converts, mapped to the field `thinking`.
OPTIONS = dict.fromkeys(REASONING_OPTIONS, _THINKING)
# The smallest reasoning budget that the provider accepts.
_BUDGET_TOKENS_MIN = 1024
# The efforts in client requests, mapped to the efforts of Claude.
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
# For each effort, the token budget for reasoning in percent of the output limit.
_SHARES = {"minimal": 10, "low": 20, "medium": 50, "high": 80, "xhigh": 95, "max": 95}
_DEFAULT_SHARE = 50
# The stop reasons that both protocols have.
FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
}
_encode = msgspec.json.Encoder().encode

# Returns the signed blocks of an earlier answer's reasoning in the form of the protocol. Omits values
# that a backend of another protocol sealed.
SignedBlocks = Callable[[Reasoning], list[FreeObject]]


def sealed_block(block: FreeObject) -> str:
    return _encode(block).decode()


def sealed_objects(reasoning: Reasoning) -> Iterator[FreeObject]:
    """Skips values that are not JSON objects: backends of other protocols sealed them."""
    for sealed in reasoning.sealed:
        try:
            block = msgspec.json.decode(sealed)
        except msgspec.DecodeError:
            continue
        if isinstance(block, dict):
            yield block


class ThinkingFields(msgspec.Struct, frozen=True):
    """A field that is None is not sent."""

    thinking: FreeObject | None = None
    effort: str | None = None


def thinking_fields(call: Call, signed_blocks: SignedBlocks) -> ThinkingFields:
    """Raises InvalidRequest for a reasoning budget that does not fit the output limit."""
    prompt, asked = call.prompt, asked_reasoning(call, OPTIONS)
    effort = _EFFORTS.get(asked.effort or "")
    if asked.off is not None:
        return ThinkingFields({"type": "disabled"}, effort)
    is_adaptive = call.model.messages.thinking is ThinkingStyle.ADAPTIVE
    by_effort = prompt.reasoning is not None and prompt.reasoning.asks_by_effort
    if asked.budget is None and not (
        asked.is_switched_on or (asked.effort is not None and by_effort)
    ):
        return ThinkingFields(effort=effort if is_adaptive else None)
    display = {"display": "summarized"} if asked.wants_summary else {}
    if isinstance(asked.budget, int):
        _check_budget(asked.budget, call, "reasoning.max_tokens")
        return ThinkingFields({"type": "enabled", "budget_tokens": asked.budget, **display})
    if is_adaptive:
        return ThinkingFields({"type": "adaptive", **display}, effort)
    if _continues_without_signature(prompt, signed_blocks):
        # The provider rejects a reasoning budget if the answer that called the tools has no signed
        # reasoning.
        return ThinkingFields()
    share = _SHARES.get(asked.effort or "", _DEFAULT_SHARE)
    tokens = max(_BUDGET_TOKENS_MIN, call.output_tokens_max * share // 100)
    _check_budget(
        tokens, call, _THINKING if prompt.reasoning is None else prompt.reasoning.params[0]
    )
    return ThinkingFields({"type": "enabled", "budget_tokens": tokens, **display})


def _check_budget(tokens: int, call: Call, param: str) -> None:
    if not _BUDGET_TOKENS_MIN <= tokens < call.output_tokens_max:
        raise InvalidRequest(
            f"The reasoning budget must be at least {_BUDGET_TOKENS_MIN} tokens and less than the "
            f"output limit, which is {call.output_tokens_max}.",
            param=param,
        )


def _continues_without_signature(prompt: Prompt, signed_blocks: SignedBlocks) -> bool:
    """Tells whether the request continues an answer that called tools, but without the signed
    reasoning of that answer."""
    for turn in reversed(prompt.turns):
        if turn.role is Role.USER:
            return False
        if turn.role is Role.ASSISTANT:
            called = any(isinstance(part, ToolCall) for part in turn.parts)
            reasonings = (part for part in turn.parts if isinstance(part, Reasoning))
            return called and not any(map(signed_blocks, reasonings))
    return False
