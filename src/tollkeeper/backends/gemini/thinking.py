"""Writes the fields of a Gemini request that ask for reasoning, and encodes the signatures of earlier
reasoning.

The provider signs its reasoning. A signature belongs to one part of an answer (a tool call, a text or
a thought). In a later request, the provider accepts the signature only in the same part. The gateway
sends each signature to clients as one sealed value, which also identifies the part: by the id of the
tool call, the text of the thought, or the range of the answer's text.
"""

from collections.abc import Iterable

import msgspec

from tollkeeper.backends.request_fields import REASONING_OPTIONS, asked_reasoning
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.messages_behavior import ThinkingStyle
from tollkeeper.domain.prompt import FreeObject, Reasoning

# The options of client requests that this module converts, mapped to the field `thinkingConfig`.
OPTIONS = dict.fromkeys(REASONING_OPTIONS, "generationConfig.thinkingConfig")
# The efforts in client requests, mapped to the levels of Gemini 3 and later models.
_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
# The efforts in client requests, mapped to token budgets for models before Gemini 3.
_BUDGETS = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24_576,
    "xhigh": 24_576,
    "max": 24_576,
}
# The budget for thoughts is at most this percentage of the output limit, because thoughts count
# towards the output limit.
_BUDGET_SHARE_MAX = 80
_BUDGET_TOKENS_MAX = 1 << 20

# A value that the provider accepts in place of a signature. A tool call has no signature if another
# model wrote the call, or if the client has not stored the signature. Gemini 3 and later models
# reject tool calls without any signature.
UNSIGNED = "skip_thought_signature_validator"


# The beginning of the sealed values of this module. Sealed values of other backends begin
# differently.
_SEAL_PREFIX = "gemini:"


class Seal(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Contains a signature, and identifies the part to which it belongs: a tool call, a thought or a
    text."""

    signature: str
    # The id of the signed tool call.
    call: str | None = None
    # The text of the signed thought.
    thought: str | None = None
    # The position at which the signed text ends in the text of the answer, and the length of the
    # signed text.
    text_end: int = 0
    text_length: int = 0

    def sealed(self) -> str:
        return _SEAL_PREFIX + _encode(self).decode()


_encode = msgspec.json.Encoder().encode
_seal_decoder = msgspec.json.Decoder(Seal)


def seals_of(reasonings: Iterable[Reasoning]) -> list[Seal]:
    """Returns the signatures in the sealed values of earlier reasoning. Omits values that a backend
    of another protocol created."""
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
    """Tells whether the provider rejects requests in which an earlier tool call of this model has no
    signature. This applies to Gemini 3 and later models, whose thinking style is `ADAPTIVE`."""
    return (
        Feature.REASONING in model.supported_features
        and model.messages.thinking is ThinkingStyle.ADAPTIVE
    )


def thinking_config(call: Call) -> FreeObject | None:
    """Returns the value of the field `thinkingConfig`; None if the client's request neither asks for
    reasoning nor turns it off."""
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
    """Returns the field for the amount of reasoning. Returns an empty object if the request specifies
    no known effort: the model then chooses the amount."""
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
