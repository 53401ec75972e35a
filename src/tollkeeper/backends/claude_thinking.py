"""Writes the request fields that ask a Claude model for reasoning. Anthropic's Messages protocol and
Amazon Bedrock's Converse protocol both use these fields."""

from collections.abc import Callable

import msgspec

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.domain.messages_behavior import ThinkingStyle
from tollkeeper.domain.prompt import FreeObject, Prompt, Reasoning, Role, ToolCall

# The option of a request that asks for encrypted reasoning, which only the provider can read.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_THINKING = "thinking"
_SUMMARIES = ("reasoning.summary", "reasoning.generate_summary")
_BUDGET = "reasoning.max_tokens"
# The options of client requests that this module converts, mapped to the field `thinking`. If the
# settings of a model map an option to another field, this module ignores the option.
OPTIONS = dict.fromkeys(
    (_THINKING, "reasoning.enabled", _BUDGET, *_SUMMARIES, ENCRYPTED_REASONING), _THINKING
)
# The smallest reasoning budget that the provider accepts.
_BUDGET_TOKENS_MIN = 1024
_NO_EFFORT = "none"
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

# Tells whether reasoning has a signature that the backend's protocol can send back.
IsSigned = Callable[[Reasoning], bool]


class ThinkingFields(msgspec.Struct, frozen=True):
    """Contains the fields of a request that ask for reasoning. A field that is None is not sent."""

    thinking: FreeObject | None = None
    effort: str | None = None


_NO_FIELDS = ThinkingFields()


def thinking_fields(call: Call, is_signed: IsSigned) -> ThinkingFields:
    """Returns the fields of the request that ask for reasoning. `is_signed` checks the reasoning of
    earlier answers.

    Raises InvalidRequest for a reasoning budget that does not fit the output limit.
    """
    prompt = call.prompt
    effort = None if prompt.reasoning is None else prompt.reasoning.effort
    options = {
        option.name: option.value
        for option in prompt.options
        if is_reasoning_option(option.name, call)
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
        # The provider rejects a reasoning budget if the answer that called the tools has no signed
        # reasoning.
        return _NO_FIELDS
    share = _SHARES.get(effort or "", _DEFAULT_SHARE)
    tokens = max(_BUDGET_TOKENS_MIN, call.output_tokens_max * share // 100)
    param = prompt.reasoning.params[0] if prompt.reasoning is not None else _THINKING
    _check_budget(tokens, call, param)
    return ThinkingFields({"type": "enabled", "budget_tokens": tokens, **display})


def is_reasoning_option(name: str, call: Call) -> bool:
    """Tells whether this module converts the option. False for options that do not concern
    reasoning, and for options that the model's settings map to another field."""
    return name in OPTIONS and call.model.options.get(name) == OPTIONS[name]


def _check_budget(tokens: int, call: Call, param: str) -> None:
    if not _BUDGET_TOKENS_MIN <= tokens < call.output_tokens_max:
        raise InvalidRequest(
            f"The reasoning budget must be at least {_BUDGET_TOKENS_MIN} tokens and less than the "
            f"output limit, which is {call.output_tokens_max}.",
            param=param,
        )


def _continues_without_signature(prompt: Prompt, is_signed: IsSigned) -> bool:
    """Tells whether the request continues an answer that called tools, but without the signed
    reasoning of that answer."""
    for turn in reversed(prompt.turns):
        if turn.role is Role.USER:
            return False
        if turn.role is Role.ASSISTANT:
            called = any(isinstance(part, ToolCall) for part in turn.parts)
            reasonings = (part for part in turn.parts if isinstance(part, Reasoning))
            return called and not any(map(is_signed, reasonings))
    return False
