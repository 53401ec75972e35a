"""Asks Gemini for reasoning, and seals its signatures. Each belongs to one part of an answer (a
tool call, text or thought) and is accepted later only there. So the sealed value also identifies
the part: by the call's id, the thought's text, or the range of the answer's text."""

from collections.abc import Iterable

import msgspec

from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.messages_behavior import ThinkingStyle
from tollkeeper.core.prompt import FreeObject, Reasoning
from tollkeeper.providers.request_fields import REASONING_OPTIONS, asked_reasoning

OPTIONS = dict.fromkeys(REASONING_OPTIONS, "generationConfig.thinkingConfig")
# For Gemini 3 and later.
_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
# In tokens, for models before Gemini 3.
_BUDGETS = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24_576,
    "xhigh": 24_576,
    "max": 24_576,
}
# In percent of the output limit, which includes thoughts.
_BUDGET_SHARE_MAX = 80
_BUDGET_TOKENS_MAX = 1 << 20

# Accepted in place of a signature. Gemini 3 and later reject unsigned tool calls, but another model
# may have written the call, or the client may not have kept the signature.
UNSIGNED = "skip_thought_signature_validator"


# Other backends' sealed values begin differently.
_SEAL_PREFIX = "gemini:"


class Seal(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A signature, and what it signs."""

    signature: str
    call: str | None = None
    thought: str | None = None
    # Where the signed text ends in the answer's text, and its length.
    text_end: int = 0
    text_length: int = 0

    def sealed(self) -> str:
        return _SEAL_PREFIX + _encode(self).decode()


_encode = msgspec.json.Encoder().encode
_seal_decoder = msgspec.json.Decoder(Seal)


def seals_of(reasonings: Iterable[Reasoning]) -> list[Seal]:
    """Without values of other protocols' backends."""
    seals = []
    for reasoning in reasonings:
        for sealed in reasoning.sealed:
            if not sealed.startswith(_SEAL_PREFIX):
                continue
            try:
                seals.append(_seal_decoder.decode(sealed.removeprefix(_SEAL_PREFIX)))
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
    return seals


def needs_signatures(model: Model) -> bool:
    """On earlier tool calls: Gemini 3 and later, whose thinking style is `ADAPTIVE`."""
    return (
        Feature.REASONING in model.supported_features
        and model.messages.thinking is ThinkingStyle.ADAPTIVE
    )


def thinking_config(call: Call) -> FreeObject | None:
    """None if the client neither asks for reasoning nor turns it off."""
    asked = asked_reasoning(call, OPTIONS)
    if asked.off is not None:
        return _reasoning_off(call, asked.off)
    budget = asked.budget
    if isinstance(budget, int) and not isinstance(budget, bool):
        if not 0 <= budget <= _BUDGET_TOKENS_MAX:
            raise InvalidRequest(
                f"The reasoning budget must be from 0 to {_BUDGET_TOKENS_MAX} tokens.",
                param="reasoning.max_tokens",
            )
        return {"thinkingBudget": budget, "includeThoughts": True}
    if asked.effort is None and not asked.is_switched_on:
        return None
    return {**_amount(call, asked.effort), "includeThoughts": True}


def _amount(call: Call, effort: str | None) -> FreeObject:
    """Empty for no known effort: the model chooses."""
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
