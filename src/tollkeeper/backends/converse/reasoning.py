"""Writes the fields of a Converse request that ask for reasoning, which differ by model family, and
encodes the reasoning of earlier answers.

The provider signs each block of reasoning, and accepts a block in a later request only if the
block is unchanged. The gateway sends each signed block to clients as one sealed value: the block as a
JSON text.
"""

from enum import StrEnum

import msgspec

from tollkeeper.backends.claude_thinking import is_reasoning_option, thinking_fields
from tollkeeper.backends.prompt_content import sealed_objects
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import FreeObject, Reasoning

_TEXT, _REDACTED = "reasoningText", "redactedContent"
_NO_EFFORT = "none"
# The efforts in client requests, mapped to the efforts of the provider.
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
# Options for which only Claude models have fields.
_CLAUDE_ONLY = frozenset({"thinking", "reasoning.enabled", "reasoning.max_tokens"})
_encode = msgspec.json.Encoder().encode


class Family(StrEnum):
    """Lists the model families. All models of a family have the same fields for reasoning. The value
    is the part that the ids of all models in a family have in common."""

    CLAUDE = "anthropic."
    NOVA = "amazon.nova"
    OPENAI = "openai."


class ReasoningFields(msgspec.Struct, frozen=True):
    """Contains the fields of a request that ask for reasoning."""

    # Fields of `additionalModelRequestFields`.
    additional: FreeObject
    # The field `effort` of `outputConfig`. None means that the field is not sent.
    effort: str | None = None


def reasoning_fields(call: Call) -> ReasoningFields:
    """Returns the fields that ask for reasoning. Raises OptionUnsupported for an option for which the
    model family has no field. Raises InvalidRequest for a reasoning budget that does not fit the
    output limit."""
    family = family_of(call.model)
    if family is Family.CLAUDE:
        fields = thinking_fields(call, is_signed)
        additional = {} if fields.thinking is None else {"thinking": fields.thinking}
        return ReasoningFields(additional, fields.effort)
    for option in call.prompt.options:
        if is_reasoning_option(option.name, call) and option.name in _CLAUDE_ONLY:
            raise OptionUnsupported(
                "For reasoning, this model accepts only an effort.", param=option.param
            )
    wish = call.prompt.reasoning
    effort = None if wish is None else wish.effort
    if wish is None or effort is None:
        return ReasoningFields({})
    if family is Family.NOVA:
        if effort == _NO_EFFORT:
            return ReasoningFields({"reasoningConfig": {"type": "disabled"}})
        config = {"type": "enabled", "maxReasoningEffort": _EFFORTS.get(effort, effort)}
        return ReasoningFields({"reasoningConfig": config})
    if effort == _NO_EFFORT:
        raise OptionUnsupported("The backend's model always reasons.", param=wish.params[0])
    return ReasoningFields({"reasoning_effort": _EFFORTS.get(effort, effort)})


def family_of(model: Model) -> Family:
    """Returns the model family by the model's id. If the id names no family (the ids of some inference
    profiles do not), the model counts as Claude."""
    for family in (Family.NOVA, Family.OPENAI):
        if family.value in model.upstream_model:
            return family
    return Family.CLAUDE


def sealed_text(text: str, signature: str) -> str:
    return _sealed({_TEXT: {"text": text, "signature": signature}})


def sealed_redacted(content: str) -> str:
    return _sealed({_REDACTED: content})


def _sealed(block: FreeObject) -> str:
    return _encode(block).decode()


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    """Returns the blocks in the sealed values of earlier reasoning. Omits values that a backend of
    another protocol created."""
    return [
        {"reasoningContent": block}
        for block in sealed_objects(reasoning)
        if block.keys() in ({_TEXT}, {_REDACTED})
    ]


def is_signed(reasoning: Reasoning) -> bool:
    return bool(signed_blocks(reasoning))
