"""Encodes a call as a Converse request. Rejects calls that the protocol can't represent."""

import re
from collections.abc import Mapping
from typing import Any

from tollkeeper.core.catalog import Feature
from tollkeeper.core.errors import OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
    FreeObject,
    Media,
    Prompt,
    Reasoning,
    SchemaOutput,
    ToolMode,
    ToolResult,
    Turn,
)
from tollkeeper.providers.cache_marks import Marks
from tollkeeper.providers.claude_thinking import OPTIONS as REASONING_OPTIONS
from tollkeeper.providers.claude_thinking import sealed_objects, thinking_fields
from tollkeeper.providers.conversation import ConversationWithIds
from tollkeeper.providers.converse.media import MediaBlocks
from tollkeeper.providers.request_fields import (
    NO_PARAMETERS,
    add_other_options,
    asked_reasoning,
    checked_temperature,
    encoded,
    offered_functions,
    present,
    refuse_unsupported,
    stop_list,
    tool_choice,
)

# All that models served through this protocol can have.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p", "stop"})
INPUT_MODALITIES = frozenset({"text", "image", "file", "audio", "video"})
OUTPUT_MODALITIES = frozenset({"text"})
FEATURES = frozenset({Feature.TOOLS, Feature.STRUCTURED_OUTPUTS, Feature.REASONING})
# The default mapping of client options to fields of this protocol.
OPTIONS = {"top_k": "additionalModelRequestFields.top_k"}

_POINT = "cachePoint"
_TOOL_BLOCKS = frozenset({"toolUse", "toolResult"})
_NO_TOOLS: FreeObject = {}
_MODES: dict[ToolMode, FreeObject] = {
    ToolMode.NONE: _NO_TOOLS,
    ToolMode.AUTO: {"auto": {}},
    ToolMode.REQUIRED: {"any": {}},
}
# In the ids of families with the same reasoning fields. An id that names none, as of some inference
# profiles, counts as Claude.
_NOVA, _OPENAI = "amazon.nova", "openai."
# For models other than Claude.
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
_CLAUDE_ONLY = ("thinking", "reasoning.enabled", "reasoning.max_tokens")


class Input(ConversationWithIds):
    call_id_pattern = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")

    def __init__(self, cache_marks: Marks) -> None:
        super().__init__()
        self._cache_marks = cache_marks
        self._media = MediaBlocks()

    def text_block(self, text: str) -> FreeObject:
        return {"text": text}

    def media_block(self, media: Media) -> FreeObject:
        return self._media.block(media)

    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]:
        return signed_blocks(reasoning)

    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject:
        return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        tool_result: FreeObject = {"toolUseId": self.answered_id(result, turn), "content": content}
        if result.is_error:
            tool_result["status"] = "error"
        return {"toolResult": tool_result}

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        """A cache point inside a tool result isn't allowed, so it goes after the block."""
        points = cache_point(self._cache_marks.read(extra, place).get("cache_control"))
        if block is None:
            return []
        if "toolResult" in block:
            content = block["toolResult"]["content"]
            points = [*(item for item in content if _POINT in item), *points][-1:]
            block["toolResult"]["content"] = [item for item in content if _POINT not in item]
        return [block, *points]


def cache_point(mark: FreeObject | None) -> list[FreeObject]:
    """The provider caches the prompt up to this block."""
    if mark is None:
        return []
    return [{_POINT: {"type": "default", **({"ttl": "1h"} if mark.get("ttl") == "1h" else {})}}]


def converse_request(call: Call, *, extra: Mapping[str, Any]) -> FreeObject:
    """The model is in the path, not here."""
    prompt = call.prompt
    refuse_unsupported(
        prompt,
        sampling=SAMPLING_PARAMETERS,
        output_modalities=OUTPUT_MODALITIES,
        web_search=False,
    )
    cache_marks = Marks(call.model.messages.caching)
    tools = _tools(prompt, cache_marks)
    conversation = Input(cache_marks)
    conversation.add(prompt.turns)
    point = cache_point(cache_marks.automatic())
    if point and conversation.messages:
        conversation.messages[-1]["content"] += point
    additional, effort = _reasoning(call)
    fields: FreeObject = {
        "system": conversation.system,
        "toolConfig": _tool_config(prompt, tools, conversation.messages),
        "additionalModelRequestFields": additional,
        "outputConfig": present({"textFormat": _text_format(prompt), "effort": effort}),
    }
    body: FreeObject = {
        "messages": conversation.messages,
        "inferenceConfig": present(
            {
                "maxTokens": call.output_tokens_max,
                "temperature": checked_temperature(prompt),
                "topP": prompt.sampling.top_p,
                "stopSequences": stop_list(prompt),
            }
        ),
        **{name: value for name, value in fields.items() if value},
    }
    add_other_options(body, call, REASONING_OPTIONS)
    body.update(extra)
    return body


def _text_format(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if not isinstance(output, SchemaOutput):
        return None
    schema = {"schema": encoded(output.schema).decode(), "name": output.name}
    described = present({**schema, "description": output.description})
    return {"type": "json_schema", "structure": {"jsonSchema": described}}


def _tools(prompt: Prompt, cache_marks: Marks) -> list[FreeObject]:
    tools: list[FreeObject] = []
    for tool in offered_functions(prompt):
        specification = {
            "name": tool.name,
            "inputSchema": {"json": tool.parameters or NO_PARAMETERS},
            "description": tool.description or None,
            "strict": tool.strict or None,
        }
        tools.append({"toolSpec": present(specification)})
        for extra in (tool.extra, tool.tool_extra):
            tools += cache_point(cache_marks.read(extra, tool.place).get("cache_control"))
    return tools


def _tool_config(
    prompt: Prompt, tools: list[FreeObject], messages: list[FreeObject]
) -> FreeObject | None:
    if not tools:
        return None
    choice = tool_choice(prompt, _MODES, lambda name: {"tool": {"name": name}})
    if choice is not _NO_TOOLS:
        return present({"tools": tools, "toolChoice": choice})
    # The protocol can't forbid tool calls, so the tools aren't sent. That doesn't work if an
    # earlier message has a call or a result: the provider then requires them.
    assert prompt.tool_choice is not None
    blocks = (block for message in messages for block in message["content"])
    if not all(map(_TOOL_BLOCKS.isdisjoint, blocks)):
        raise OptionUnsupported(
            "The backend does not support tool_choice none after tools were called.",
            param=prompt.tool_choice.param,
        )
    return None


def _reasoning(call: Call) -> tuple[FreeObject, str | None]:
    """For `additionalModelRequestFields`, and the `effort` of `outputConfig`."""
    is_nova = _NOVA in call.model.upstream_model
    if not is_nova and _OPENAI not in call.model.upstream_model:
        fields = thinking_fields(call, signed_blocks)
        return present({"thinking": fields.thinking}), fields.effort
    asked = asked_reasoning(call, REASONING_OPTIONS)
    for name in _CLAUDE_ONLY:
        if name in asked.options:
            raise OptionUnsupported(
                "For reasoning, this model accepts only an effort.", param=asked.options[name]
            )
    if asked.effort is None:
        return {}, None
    effort = _EFFORTS.get(asked.effort, asked.effort)
    if is_nova:
        config = {"type": "enabled", "maxReasoningEffort": effort}
        return {"reasoningConfig": {"type": "disabled"} if asked.off else config}, None
    if asked.off:
        raise OptionUnsupported("The backend's model always reasons.", param=asked.off)
    return {"reasoning_effort": effort}, None


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    return [
        {"reasoningContent": block}
        for block in sealed_objects(reasoning)
        if block.keys() in ({"reasoningText"}, {"redactedContent"})
    ]
