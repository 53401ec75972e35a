"""Encodes a call as a Converse request. Rejects calls that the protocol cannot represent."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tollkeeper.backends.cache_marks import Marks
from tollkeeper.backends.claude_thinking import is_reasoning_option
from tollkeeper.backends.converse.input import Input, cache_point
from tollkeeper.backends.converse.reasoning import reasoning_fields
from tollkeeper.backends.options import add_options
from tollkeeper.backends.unsupported import (
    chosen_tool,
    offered_functions,
    refuse_server_tools,
    refuse_unsupported,
)
from tollkeeper.domain.catalog import Feature
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import (
    FreeObject,
    FunctionTool,
    NamedFunction,
    Prompt,
    SchemaOutput,
    ToolMode,
)

# The parameters, modalities and features of this protocol. A model that is served through this
# protocol cannot have others.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p", "stop"})
INPUT_MODALITIES = frozenset({"text", "image", "file", "audio", "video"})
OUTPUT_MODALITIES = frozenset({"text"})
FEATURES = frozenset({Feature.TOOLS, Feature.STRUCTURED_OUTPUTS, Feature.REASONING})
# The default mapping of options (fields of client requests that the gateway passes on) to fields of
# this protocol.
OPTIONS = {"top_k": "additionalModelRequestFields.top_k"}

_TEMPERATURE_MAX = 1.0
_NO_PARAMETERS: FreeObject = {"type": "object", "properties": {}}
_MODES: dict[ToolMode, FreeObject] = {
    ToolMode.AUTO: {"auto": {}},
    ToolMode.REQUIRED: {"any": {}},
}
_TOOL_BLOCKS = frozenset({"toolUse", "toolResult"})
# The fields that a token count request may have.
_COUNT_FIELDS = ("messages", "system", "toolConfig", "additionalModelRequestFields")
_encode = msgspec.json.Encoder().encode


def converse_request(call: Call, *, extra: Mapping[str, Any]) -> FreeObject:
    """Builds the body of the request. Always sends the output limit. The body does not contain the
    model, because the path does."""
    prompt = call.prompt
    refuse_unsupported(prompt, sampling=SAMPLING_PARAMETERS, output_modalities=OUTPUT_MODALITIES)
    if prompt.web_search is not None:
        raise OptionUnsupported(
            "The backend's protocol does not support web search.", param=prompt.web_search.param
        )
    cache_marks = Marks(call.model.messages.caching)
    tools = _tools(prompt, cache_marks)
    conversation = Input(cache_marks)
    conversation.add(prompt.turns)
    point = cache_point(cache_marks.automatic())
    if point and conversation.messages:
        conversation.messages[-1]["content"] += point
    reasoning = reasoning_fields(call)
    output = {"textFormat": _text_format(prompt), "effort": reasoning.effort}
    fields: FreeObject = {
        "system": conversation.system,
        "toolConfig": _tool_config(prompt, tools, conversation.messages),
        "additionalModelRequestFields": dict(reasoning.additional),
        "outputConfig": {name: value for name, value in output.items() if value is not None},
    }
    body: FreeObject = {
        "messages": conversation.messages,
        "inferenceConfig": _inference_config(call),
        **{name: value for name, value in fields.items() if value},
    }
    options = [option for option in prompt.options if not is_reasoning_option(option.name, call)]
    add_options(body, call.model, options)
    body.update(extra)
    return body


def count_request(call: Call) -> FreeObject:
    """Builds the body of the token count request."""
    refuse_server_tools(call.prompt)
    body = converse_request(call, extra={})
    counted_fields = {name: body[name] for name in _COUNT_FIELDS if name in body}
    return {"input": {"converse": counted_fields}}


def _inference_config(call: Call) -> FreeObject:
    sampling = call.prompt.sampling
    temperature, stop = sampling.temperature, sampling.stop
    if temperature is not None and not 0 <= temperature <= _TEMPERATURE_MAX:
        raise InvalidRequest(
            "The backend accepts only temperatures from 0 to 1.", param="temperature"
        )
    config = {
        "maxTokens": call.output_tokens_max,
        "temperature": temperature,
        "topP": sampling.top_p,
        "stopSequences": [stop] if isinstance(stop, str) else stop or None,
    }
    return {name: value for name, value in config.items() if value is not None}


def _text_format(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if not isinstance(output, SchemaOutput):
        return None
    schema: FreeObject = {"schema": _encode(output.schema).decode(), "name": output.name}
    if output.description is not None:
        schema["description"] = output.description
    return {"type": "json_schema", "structure": {"jsonSchema": schema}}


def _tools(prompt: Prompt, cache_marks: Marks) -> list[FreeObject]:
    tools: list[FreeObject] = []
    for tool in offered_functions(prompt):
        tools.append({"toolSpec": _specification(tool)})
        for extra in (tool.extra, tool.tool_extra):
            tools += cache_point(cache_marks.read(extra, tool.place).get("cache_control"))
    return tools


def _specification(tool: FunctionTool) -> FreeObject:
    specification: FreeObject = {
        "name": tool.name,
        "inputSchema": {"json": tool.parameters or _NO_PARAMETERS},
    }
    if tool.description:
        specification["description"] = tool.description
    if tool.strict:
        specification["strict"] = True
    return specification


def _tool_config(
    prompt: Prompt, tools: list[FreeObject], messages: list[FreeObject]
) -> FreeObject | None:
    if not tools:
        return None
    choice = chosen_tool(prompt)
    if choice is ToolMode.NONE:
        # The protocol cannot forbid tool calls. To prevent them, the request is sent without tools.
        # Omitting the tools is not possible if an earlier message contains a tool call or a result,
        # because the provider then requires the tools.
        assert prompt.tool_choice is not None
        if _has_tool_blocks(messages):
            raise OptionUnsupported(
                "The backend does not support tool_choice none after tools were called.",
                param=prompt.tool_choice.param,
            )
        return None
    config: FreeObject = {"tools": tools}
    match choice:
        case ToolMode():
            config["toolChoice"] = _MODES[choice]
        case NamedFunction(name=name):
            config["toolChoice"] = {"tool": {"name": name}}
    return config


def _has_tool_blocks(messages: list[FreeObject]) -> bool:
    return any(
        not _TOOL_BLOCKS.isdisjoint(block) for message in messages for block in message["content"]
    )


def encoded(body: FreeObject) -> bytes:
    return _encode(body)
