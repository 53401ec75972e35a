"""Asks for reasoning on the Gemini wire, and encodes its signatures in later turns.

The provider sends signatures of its reasoning, each on a call, on a text or on a thought, and
accepts each back only on the same part. The gateway's faces transmit each signature as one sealed
value, which contains its position: the id of the call, or the part of the answer's text.
"""

from collections.abc import Iterable

import msgspec

from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.messages_behavior import ThinkingStyle
from tollkeeper.domain.prompt import FreeObject, Reasoning

_FIELD = "generationConfig.thinkingConfig"
_THINKING = "thinking"
_SWITCHES = (_THINKING, "reasoning.enabled")
_BUDGET = "reasoning.max_tokens"
_SUMMARIES = ("reasoning.summary", "reasoning.generate_summary")
_ENCRYPTED = "reasoning.encrypted_content"
# The options of the faces that this file writes itself. A model in the settings may map them to
# other fields; then they go there instead.
OPTIONS = dict.fromkeys((*_SWITCHES, _BUDGET, *_SUMMARIES, _ENCRYPTED), _FIELD)

_NO_EFFORT = "none"
# The faces' efforts, mapped to the provider's levels and, for models before Gemini 3, to tokens.
_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_BUDGETS = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24_576,
    "xhigh": 24_576,
    "max": 24_576,
}
# The maximum percentage of the output limit for thoughts, which count towards it.
_BUDGET_SHARE_MAX = 80
_BUDGET_TOKENS_MAX = 1 << 20

# The provider documents this value for calls without a signature, because another model wrote them
# or the client has not stored it. Models from Gemini 3 on reject a call without any.
UNSIGNED = "skip_thought_signature_validator"


# Values that other backends sealed do not begin like this.
_SEALED_HERE = "gemini:"


class Seal(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Contains a signature, and the part that it belongs to: a call, a thought, or a text."""

    signature: str
    # The id of the call.
    call: str | None = None
    thought: str | None = None
    # The end of the signed text within the text of the answer, and its length.
    text_end: int = 0
    text_length: int = 0

    def sealed(self) -> str:
        return _SEALED_HERE + _encode(self).decode()


_encode = msgspec.json.Encoder().encode
_seal_decoder = msgspec.json.Decoder(Seal)


def seals_of(reasonings: Iterable[Reasoning]) -> list[Seal]:
    """Returns the signatures in earlier reasoning. Omits values that another backend sealed."""
    seals = []
    for reasoning in reasonings:
        for sealed in reasoning.sealed:
            if not sealed.startswith(_SEALED_HERE):
                continue
            try:
                seals.append(_seal_decoder.decode(sealed.removeprefix(_SEALED_HERE)))
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
    return seals


def needs_signatures(model: Model) -> bool:
    """Tells whether the provider rejects calls of this model that come back without a signature."""
    return (
        Feature.REASONING in model.supported_features
        and model.messages.thinking is ThinkingStyle.ADAPTIVE
    )


def is_native(name: str, call: Call) -> bool:
    """Tells whether this wire writes the option itself."""
    return name in OPTIONS and call.model.options.get(name) == OPTIONS[name]


def thinking_config(call: Call) -> FreeObject | None:
    """Returns None if the client does not ask for anything."""
    wish = call.prompt.reasoning
    effort = None if wish is None else wish.effort
    options = {
        option.name: option.value for option in call.prompt.options if is_native(option.name, call)
    }
    switches = {name: options[name] for name in _SWITCHES if name in options}
    if effort == _NO_EFFORT and wish is not None:
        return _reasoning_off(call, wish.params[0])
    for name, value in switches.items():
        if value is False:
            return _reasoning_off(call, name)
    budget = options.get(_BUDGET)
    if isinstance(budget, int) and not isinstance(budget, bool):
        if not 0 <= budget <= _BUDGET_TOKENS_MAX:
            raise InvalidRequest(
                f"The budget must be from 0 to {_BUDGET_TOKENS_MAX} tokens.", param=_BUDGET
            )
        return {"thinkingBudget": budget, "includeThoughts": True}
    has_summary = any(name in options for name in _SUMMARIES)
    if effort is None and True not in switches.values() and not has_summary:
        return None
    return {**_amount(call, effort), "includeThoughts": True}


def _amount(call: Call, effort: str | None) -> FreeObject:
    """Returns how much the model thinks. Without an effort it decides by itself."""
    if effort is None:
        return {}
    if call.model.messages.thinking is ThinkingStyle.ADAPTIVE:
        level = _LEVELS.get(effort)
        return {} if level is None else {"thinkingLevel": level}
    tokens = _BUDGETS.get(effort)
    if tokens is None:
        return {}
    return {"thinkingBudget": min(tokens, call.output_tokens_max * _BUDGET_SHARE_MAX // 100)}


def _reasoning_off(call: Call, param: str) -> FreeObject:
    if call.model.messages.thinking is ThinkingStyle.ADAPTIVE:
        raise OptionUnsupported("Reasoning cannot be turned off for this model.", param=param)
    return {"thinkingBudget": 0}
