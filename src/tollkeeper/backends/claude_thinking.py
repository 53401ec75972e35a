"""Asks Claude to reason, on every wire that transmits it."""

from collections.abc import Callable

import msgspec

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.domain.messages_behavior import ThinkingStyle
from tollkeeper.domain.prompt import FreeObject, Prompt, Reasoning, Role, ToolCall

# The option that asks for reasoning which only the backend can read.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_THINKING = "thinking"
_SUMMARIES = ("reasoning.summary", "reasoning.generate_summary")
_BUDGET = "reasoning.max_tokens"
# The options of the faces that this file writes itself. A model in the settings may map them to
# other fields; then they go there instead.
OPTIONS = dict.fromkeys(
    (_THINKING, "reasoning.enabled", _BUDGET, *_SUMMARIES, ENCRYPTED_REASONING), _THINKING
)
_BUDGET_TOKENS_MIN = 1024
_NO_EFFORT = "none"
# The faces' efforts, mapped to the provider's.
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
# The share of the output that each effort may use for reasoning, in percent.
_SHARES = {"minimal": 10, "low": 20, "medium": 50, "high": 80, "xhigh": 95, "max": 95}
_DEFAULT_SHARE = 50

IsSigned = Callable[[Reasoning], bool]


class ThinkingFields(msgspec.Struct, frozen=True):
    """Contains the fields of a request that ask for reasoning. None means that a field is not
    sent."""

    thinking: FreeObject | None = None
    effort: str | None = None


_NOT_ASKED = ThinkingFields()


def thinking_fields(call: Call, is_signed: IsSigned) -> ThinkingFields:
    """Returns the reasoning fields. `is_signed` tells whether earlier reasoning has a signature
    that the wire can send back.

    Raises InvalidRequest for a budget that does not fit the output limit.
    """
    prompt = call.prompt
    effort = None if prompt.reasoning is None else prompt.reasoning.effort
    options = {
        option.name: option.value for option in prompt.options if is_native(option.name, call)
    }
    switches = [options[name] for name in (_THINKING, "reasoning.enabled") if name in options]
    if effort == _NO_EFFORT or False in switches:
        return ThinkingFields({"type": "disabled"}, _EFFORTS.get(effort or ""))
    wants_summary = any(name in options for name in _SUMMARIES)
    budget = options.get(_BUDGET)
    is_adaptive = call.model.messages.thinking is ThinkingStyle.ADAPTIVE
    by_effort = prompt.reasoning is not None and prompt.reasoning.asks_by_effort
    is_asked = (effort is not None and by_effort) or True in switches or wants_summary
    if budget is None and not is_asked:
        return ThinkingFields(effort=_EFFORTS.get(effort or "") if is_adaptive else None)
    display = {"display": "summarized"} if wants_summary else {}
    if isinstance(budget, int):
        _check_budget(budget, call, _BUDGET)
        return ThinkingFields({"type": "enabled", "budget_tokens": budget, **display})
    if is_adaptive:
        return ThinkingFields({"type": "adaptive", **display}, _EFFORTS.get(effort or ""))
    if _continues_without_signature(prompt, is_signed):
        # The provider rejects a budget if the turn that called the tools has no signed block.
        return _NOT_ASKED
    share = _SHARES.get(effort or "", _DEFAULT_SHARE)
    tokens = max(_BUDGET_TOKENS_MIN, call.output_tokens_max * share // 100)
    param = prompt.reasoning.params[0] if prompt.reasoning is not None else _THINKING
    _check_budget(tokens, call, param)
    return ThinkingFields({"type": "enabled", "budget_tokens": tokens, **display})


def is_native(name: str, call: Call) -> bool:
    """Tells whether the wire writes the option itself."""
    return name in OPTIONS and call.model.options.get(name) == OPTIONS[name]


def _check_budget(tokens: int, call: Call, param: str) -> None:
    if not _BUDGET_TOKENS_MIN <= tokens < call.output_tokens_max:
        raise InvalidRequest(
            f"Reasoning takes at least {_BUDGET_TOKENS_MIN} tokens and less than the output bound, "
            f"which is {call.output_tokens_max}.",
            param=param,
        )


def _continues_without_signature(prompt: Prompt, is_signed: IsSigned) -> bool:
    """Tells whether the last answer called tools, and its reasoning came back without a
    signature."""
    for turn in reversed(prompt.turns):
        if turn.role is Role.USER:
            return False
        if turn.role is Role.ASSISTANT:
            called = any(isinstance(part, ToolCall) for part in turn.parts)
            reasonings = (part for part in turn.parts if isinstance(part, Reasoning))
            return called and not any(map(is_signed, reasonings))
    return False
