"""Encodes a call as a Gemini request. Rejects calls that the protocol can't represent."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.core.catalog import Feature
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import IMAGE, TEXT, Call
from tollkeeper.core.prompt import (
    FreeObject,
    FunctionTool,
    OutputFormat,
    Prompt,
    SchemaOutput,
    ToolMode,
    WebSearch,
)
from tollkeeper.providers.gemini.input import Input
from tollkeeper.providers.gemini.thinking import OPTIONS as REASONING_OPTIONS
from tollkeeper.providers.gemini.thinking import needs_signatures, thinking_config
from tollkeeper.providers.request_fields import (
    add_other_options,
    check_extra,
    check_search,
    described_schema,
    offered_functions,
    present,
    refuse_forced_search,
    refuse_unsupported,
    stop_list,
    tool_choice,
)

# All that models served through this protocol can have.
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
# The default mapping of client options to fields of this protocol.
OPTIONS = {"top_k": "generationConfig.topK"}

_SEED_MIN, _SEED_MAX = -(2**31), 2**31 - 1
_JSON_TYPE = "application/json"
_AUTO: FreeObject = {"mode": "AUTO"}
_MODES = {ToolMode.NONE: {"mode": "NONE"}, ToolMode.AUTO: _AUTO, ToolMode.REQUIRED: {"mode": "ANY"}}
# The model decides, as with AUTO, but arguments always match the schemas, as with ANY.
_VALIDATED: FreeObject = {"mode": "VALIDATED"}


def generate_request(call: Call, *, extra: Mapping[str, Any], sends_ids: bool) -> FreeObject:
    """The model is in the path, not here. `sends_ids`: those of tool calls."""
    prompt, sampling = call.prompt, call.prompt.sampling
    refuse_unsupported(
        prompt, sampling=SAMPLING_PARAMETERS, output_modalities=OUTPUT_MODALITIES, json_output=True
    )
    if sampling.seed is not None and not _SEED_MIN <= sampling.seed <= _SEED_MAX:
        raise InvalidRequest("The backend accepts only seeds of 32 bits.", param="seed")
    conversation = Input(sends_ids=sends_ids, needs_signatures=needs_signatures(call.model))
    conversation.add(prompt.turns)
    system = conversation.system
    generation: FreeObject = {
        "maxOutputTokens": call.output_tokens_max,
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "stopSequences": stop_list(prompt),
        **_output_format(prompt.output_format),
        "thinkingConfig": thinking_config(call),
        "responseModalities": _response_modalities(call),
    }
    body = {
        "contents": conversation.messages,
        **({"systemInstruction": {"parts": system}} if system else {}),
        **_tool_fields(prompt),
        "generationConfig": present(generation),
    }
    add_other_options(body, call, REASONING_OPTIONS)
    body.update(extra)
    return body


def _response_modalities(call: Call) -> list[str] | None:
    """None is the provider's default: nothing was requested, or the model can write only text."""
    modalities = [modality.name.upper() for modality in call.prompt.output_modalities]
    return (modalities or None) if IMAGE in call.model.output_modalities else None


def _output_format(output: OutputFormat | None) -> FreeObject:
    if output is None:
        return {}
    if not isinstance(output, SchemaOutput):
        return {"responseMimeType": _JSON_TYPE}
    return {"responseMimeType": _JSON_TYPE, "responseJsonSchema": described_schema(output)}


def _tool_fields(prompt: Prompt) -> FreeObject:
    # A list of allowed functions works only if the model must call one, so only those are sent.
    offered = offered_functions(prompt)
    for tool in offered:
        check_extra(tool.extra, tool.place)
        check_extra(tool.tool_extra, tool.place)
    config = _calling_config(prompt, offered)
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
    declaration = {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters or None,
    }
    return present(declaration)


def _check_search(search: WebSearch) -> None:
    check_search(search)
    if search.location is not None and search.location.set_fields():
        raise OptionUnsupported(
            "The backend accepts a search location only as coordinates.",
            param=f"{search.param}.user_location",
        )


def _calling_config(prompt: Prompt, offered: list[FunctionTool]) -> FreeObject | None:
    """None if the model decides, the provider's default."""
    chosen = tool_choice(
        prompt, _MODES, lambda name: {"mode": "ANY", "allowedFunctionNames": [name]}
    )
    if chosen is None or chosen is _AUTO:
        return _VALIDATED if any(tool.strict for tool in offered) else None
    return chosen
