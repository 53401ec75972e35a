"""Encodes a call as a Gemini request. Rejects calls that the protocol cannot represent."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tollkeeper.backends.gemini.input import Input
from tollkeeper.backends.gemini.thinking import (
    is_reasoning_option,
    needs_signatures,
    thinking_config,
)
from tollkeeper.backends.options import add_options
from tollkeeper.backends.unsupported import (
    check_extra,
    check_search,
    chosen_tool,
    offered_functions,
    refuse_forced_search,
    refuse_server_tools,
    refuse_unsupported,
)
from tollkeeper.domain.catalog import Feature
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import IMAGE, TEXT, Call
from tollkeeper.domain.prompt import (
    FreeObject,
    FunctionTool,
    NamedFunction,
    OutputFormat,
    Prompt,
    Sampling,
    SchemaOutput,
    ToolMode,
    WebSearch,
)

# The parameters, modalities and features of this protocol. A model that is served through this
# protocol cannot have others.
SAMPLING_PARAMETERS = frozenset(
    {"temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop"}
)
INPUT_MODALITIES = frozenset({"text", "image", "audio", "video", "file"})
OUTPUT_MODALITIES = frozenset({TEXT, IMAGE})
FEATURES = frozenset(
    {
        *(Feature.TOOLS, Feature.JSON_MODE, Feature.STRUCTURED_OUTPUTS),
        *(Feature.REASONING, Feature.WEB_SEARCH),
    }
)
# The default mapping of options (fields of client requests that the gateway passes on) to fields of
# this protocol.
OPTIONS = {"top_k": "generationConfig.topK"}

_SEED_MIN, _SEED_MAX = -(2**31), 2**31 - 1
_JSON_TYPE = "application/json"
_MODES = {ToolMode.NONE: "NONE", ToolMode.AUTO: "AUTO", ToolMode.REQUIRED: "ANY"}
# In this mode the model decides whether to call functions, as in the mode AUTO, but the arguments of
# its calls always match the schemas of the functions, as in the mode ANY.
_VALIDATED = "VALIDATED"
# The fields that a token count request may have.
_COUNT_FIELDS = ("contents", "systemInstruction", "tools")
_encode = msgspec.json.Encoder().encode


def generate_request(call: Call, *, extra: Mapping[str, Any], sends_ids: bool) -> FreeObject:
    """Builds the body of the request. Always sends the output limit. The body does not contain the
    model, because the path does. `sends_ids` tells whether tool calls are sent with their ids."""
    prompt = call.prompt
    refuse_unsupported(
        prompt, sampling=SAMPLING_PARAMETERS, output_modalities=OUTPUT_MODALITIES, json_output=True
    )
    conversation = Input(sends_ids=sends_ids, needs_signatures=needs_signatures(call.model))
    conversation.add(prompt.turns)
    body: FreeObject = {"contents": conversation.messages}
    if conversation.system:
        body["systemInstruction"] = {"parts": conversation.system}
    body.update(_tool_fields(prompt))
    generation: FreeObject = {
        "maxOutputTokens": call.output_tokens_max,
        **_sampling(prompt.sampling),
        **_output_format(prompt.output_format),
        "thinkingConfig": thinking_config(call),
        "responseModalities": _response_modalities(call),
    }
    body["generationConfig"] = {
        name: value for name, value in generation.items() if value is not None
    }
    options = [option for option in prompt.options if not is_reasoning_option(option.name, call)]
    add_options(body, call.model, options)
    body.update(extra)
    return body


def count_request(call: Call, *, sends_ids: bool) -> FreeObject:
    """Builds the body of the token count request."""
    refuse_server_tools(call.prompt)
    body = generate_request(call, extra={}, sends_ids=sends_ids)
    return {name: body[name] for name in _COUNT_FIELDS if name in body}


def _response_modalities(call: Call) -> list[str] | None:
    """Returns the requested modalities. Returns None, which means the provider's default, if the client
    requests no modalities or the model can write only text."""
    modalities = [modality.name.upper() for modality in call.prompt.output_modalities]
    return (modalities or None) if IMAGE in call.model.output_modalities else None


def _sampling(sampling: Sampling) -> FreeObject:
    seed, stop = sampling.seed, sampling.stop
    if seed is not None and not _SEED_MIN <= seed <= _SEED_MAX:
        raise InvalidRequest("The backend accepts only seeds of 32 bits.", param="seed")
    return {
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "seed": seed,
        "stopSequences": [stop] if isinstance(stop, str) else stop or None,
    }


def _output_format(output: OutputFormat | None) -> FreeObject:
    if output is None:
        return {}
    if not isinstance(output, SchemaOutput):
        return {"responseMimeType": _JSON_TYPE}
    schema = output.schema
    if output.description is not None and "description" not in schema:
        schema = {**schema, "description": output.description}
    return {"responseMimeType": _JSON_TYPE, "responseJsonSchema": schema}


def _tool_fields(prompt: Prompt) -> FreeObject:
    # The protocol supports a list of allowed functions only if the model must call one of them. So
    # only the allowed functions are sent.
    offered = offered_functions(prompt)
    for tool in offered:
        check_extra(tool.extra, tool.place)
        check_extra(tool.tool_extra, tool.place)
    config = _calling_config(chosen_tool(prompt), offered)
    tools: list[FreeObject] = []
    if offered:
        tools.append({"functionDeclarations": [_declaration(tool) for tool in offered]})
    if prompt.web_search is not None:
        refuse_forced_search(prompt)
        _check_search(prompt.web_search)
        tools.append({"googleSearch": {}})
    fields: FreeObject = {}
    if tools:
        fields["tools"] = tools
    if offered and config is not None:
        fields["toolConfig"] = {"functionCallingConfig": config}
    return fields


def _declaration(tool: FunctionTool) -> FreeObject:
    declaration: FreeObject = {"name": tool.name}
    if tool.description is not None:
        declaration["description"] = tool.description
    if tool.parameters:
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def _check_search(search: WebSearch) -> None:
    check_search(search)
    if search.location is not None and search.location.set_fields():
        raise OptionUnsupported(
            "The backend accepts a search location only as coordinates.",
            param=f"{search.param}.user_location",
        )


def _calling_config(
    choice: ToolMode | NamedFunction | None, offered: list[FunctionTool]
) -> FreeObject | None:
    """Returns the value of `functionCallingConfig`. Returns None if the provider's default is right:
    the model decides whether to call functions."""
    names: list[str] = []
    match choice:
        case NamedFunction(name=name):
            mode, names = "ANY", [name]
        case _:
            mode = _MODES[choice or ToolMode.AUTO]
    if mode == "AUTO" and any(tool.strict for tool in offered):
        mode = _VALIDATED
    if mode == "AUTO":
        return None
    return {"mode": mode, **({"allowedFunctionNames": names} if names else {})}


def encoded(body: FreeObject) -> bytes:
    return _encode(body)
