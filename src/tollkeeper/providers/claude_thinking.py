"""Asks Claude for reasoning and seals it, for Messages and Converse. The provider signs each block
of reasoning and accepts it back only unchanged, so clients get it as one sealed value: its JSON
text."""

from collections.abc import Callable, Iterator

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.inference import Call, Finish
from tollkeeper.core.messages_behavior import ThinkingStyle
from tollkeeper.core.prompt import FreeObject, Prompt, Reasoning, Role, ToolCall
from tollkeeper.providers.request_fields import REASONING_OPTIONS, asked_reasoning

_THINKING = "thinking"
OPTIONS = dict.fromkeys(REASONING_OPTIONS, _THINKING)
# The smallest that the provider accepts.
_BUDGET_TOKENS_MIN = 1024
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
# Of the output limit, in percent.
_SHARES = {"minimal": 10, "low": 20, "medium": 50, "high": 80, "xhigh": 95, "max": 95}
_DEFAULT_SHARE = 50
# In both protocols.
FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
}
_encode = msgspec.json.Encoder().encode

# In the form of the protocol, without values that another protocol's backend sealed.
SignedBlocks = Callable[[Reasoning], list[FreeObject]]


def sealed_block(block: FreeObject) -> str:
    return _encode(block).decode()


def sealed_objects(reasoning: Reasoning) -> Iterator[FreeObject]:
    """Skips what backends of other protocols sealed."""
    for sealed in reasoning.sealed:
        try:
            block = msgspec.json.decode(sealed)
        except msgspec.DecodeError:
            continue
        if isinstance(block, dict):
            yield block


class ThinkingFields(msgspec.Struct, frozen=True):
    """None isn't sent."""

    thinking: FreeObject | None = None
    effort: str | None = None


def thinking_fields(call: Call, signed_blocks: SignedBlocks) -> ThinkingFields:
    """Raises InvalidRequest for a budget that doesn't fit the output limit."""
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
        # The provider rejects a budget if the answer that called the tools has no signed
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
    """Of an answer that called tools."""
    for turn in reversed(prompt.turns):
        if turn.role is Role.USER:
            return False
        if turn.role is Role.ASSISTANT:
            called = any(isinstance(part, ToolCall) for part in turn.parts)
            reasonings = (part for part in turn.parts if isinstance(part, Reasoning))
            return called and not any(map(signed_blocks, reasonings))
    return False
