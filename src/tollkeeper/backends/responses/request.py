"""Encodes a call as a Responses request to a backend. Rejects calls that the protocol cannot
represent."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tollkeeper.backends.options import add_options
from tollkeeper.backends.prompt_content import custom_member
from tollkeeper.backends.responses.input import Input
from tollkeeper.backends.unsupported import check_extra
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import (
    AllowedFunctions,
    FreeObject,
    FunctionTool,
    NamedFunction,
    Option,
    OtherChoice,
    Prompt,
    SchemaOutput,
    Tool,
    ToolChoice,
    ToolMode,
    WebSearch,
)

# The sampling parameters and modalities that this protocol supports.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
# The option that asks for encrypted reasoning, which only the provider can read.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_INCLUDE = "include"
# The default mapping of options (fields of client requests that the gateway passes on) to fields of
# this protocol. `service_tier` is not in the default, because each tier has its own price: an
# operator has to declare the tier in the settings of a model.
OPTIONS: Mapping[str, str] = {
    "verbosity": "text.verbosity",
    "reasoning.summary": "reasoning.summary",
    "reasoning.generate_summary": "reasoning.summary",
    ENCRYPTED_REASONING: _INCLUDE,
    "max_tool_calls": "max_tool_calls",
}
_LOGPROBS = "message.output_text.logprobs"
_NO_FIELDS: Mapping[str, Any] = {}
_encode = msgspec.json.Encoder().encode


def encode_responses_request(
    call: Call,
    *,
    stream: bool,
    extra: Mapping[str, Any] = _NO_FIELDS,
    takes_reasoning_text: bool = True,
) -> bytes:
    """Encodes the body of the request. Always asks the backend not to store the answer.
    `takes_reasoning_text` tells whether to send reasoning that the backend has not encrypted."""
    prompt = call.prompt
    _refuse_unsupported(prompt, salts_cache=bool(call.model.cache_salt_field))
    conversation = Input(takes_reasoning_text=takes_reasoning_text).add(prompt.turns)
    body: FreeObject = {}
    _add_optional(
        body,
        {
            "instructions": conversation.instructions,
            "temperature": prompt.sampling.temperature,
            "top_p": prompt.sampling.top_p,
            "metadata": prompt.identity.metadata,
            "user": prompt.identity.short_user,
            "safety_identifier": prompt.identity.safety_identifier,
            "prompt_cache_key": prompt.caching.key,
            "text": _text(prompt),
            "reasoning": _reasoning(prompt),
        },
    )
    body.update(_tool_fields(prompt))
    _add_includes(body, call)
    options = [option for option in prompt.options if not _is_include(option, call.model)]
    add_options(body, call.model, options)
    if prompt.caching.salt is not None:
        body[call.model.cache_salt_field] = prompt.caching.salt
    body.update(extra)
    body["model"] = call.model.upstream_model
    body["input"] = conversation.items
    body["max_output_tokens"] = call.output_tokens_max
    body["stream"] = stream
    body["store"] = False
    return _encode(body)


def _add_includes(body: FreeObject, call: Call) -> None:
    prompt = call.prompt
    included = [option.name for option in prompt.options if _is_include(option, call.model)]
    if prompt.logprobs is not None:
        included.insert(0, _LOGPROBS)
        _add_optional(body, {"top_logprobs": prompt.logprobs.top})
    if included:
        body["include"] = included


def _is_include(option: Option, model: Model) -> bool:
    """Tells whether the option is sent by adding its name to the `include` list."""
    return model.options[option.name] == _INCLUDE


def _add_optional(body: FreeObject, fields: Mapping[str, Any]) -> None:
    body.update((name, value) for name, value in fields.items() if value is not None)


def _refuse_unsupported(prompt: Prompt, *, salts_cache: bool) -> None:
    requested = [*prompt.sampling.set_fields()]
    requested += [
        modality.param
        for modality in prompt.output_modalities
        if modality.name not in OUTPUT_MODALITIES
    ]
    if prompt.caching.salt is not None and not salts_cache:
        requested.append("cache_salt")
    for name in requested:
        if name not in SAMPLING_PARAMETERS:
            raise OptionUnsupported(f"The backend's protocol does not support {name}.", param=name)


def _text(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if output is None:
        return None
    if not isinstance(output, SchemaOutput):
        return {"format": output.described()}
    schema: FreeObject = {"type": "json_schema", "name": output.name, "schema": output.schema}
    _add_optional(schema, {"description": output.description, "strict": output.strict})
    return {"format": schema}


def _reasoning(prompt: Prompt) -> FreeObject | None:
    if prompt.reasoning is None or prompt.reasoning.effort is None:
        return None
    return {"effort": prompt.reasoning.effort}


def _tool_fields(prompt: Prompt) -> FreeObject:
    fields: FreeObject = {}
    tools = [_tool(tool) for tool in prompt.tools]
    if prompt.web_search is not None:
        tools.append(_search_tool(prompt.web_search))
    if tools:
        fields["tools"] = tools
    if prompt.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(prompt.tool_choice)
    if prompt.has_legacy_functions_only:
        # An answer in the legacy form (`function_call`) can contain only one call.
        fields["parallel_tool_calls"] = False
    elif prompt.parallel_tool_calls is not None and prompt.tools:
        fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    return fields


def _tool(tool: Tool) -> FreeObject:
    if not isinstance(tool, FunctionTool):
        custom = custom_member(tool.written)
        if custom is None or not isinstance(custom.get("name"), str):
            place = "functions" if tool.legacy else tool.place
            raise OptionUnsupported(
                "This model supports only tools of the types function and custom.", param=place
            )
        return _custom_tool(custom)
    check_extra(tool.tool_extra, tool.place)
    definition: FreeObject = {
        "type": "function",
        "name": tool.name,
        "parameters": tool.parameters,
        # `strict` is always sent, because its default is false in the chat protocol and true in this
        # protocol.
        "strict": tool.strict or False,
        **(tool.extra or {}),
    }
    _add_optional(definition, {"description": tool.description})
    return definition


def _custom_tool(custom: FreeObject) -> FreeObject:
    """Converts the custom tool of a chat request. The chat protocol nests the fields of the tool in an
    object `custom`, and the fields of its grammar in an object `grammar`. This protocol does not have
    these two objects."""
    definition = {**custom, "type": "custom"}
    input_format = custom.get("format")
    if isinstance(input_format, dict) and isinstance(input_format.get("grammar"), dict):
        definition["format"] = {**input_format["grammar"], "type": "grammar"}
    return definition


def _search_tool(search: WebSearch) -> FreeObject:
    if search.extra:
        raise InvalidRequest(
            f"{search.param} has fields that are not supported.", param=search.param
        )
    tool: FreeObject = {"type": "web_search"}
    _add_optional(tool, {"search_context_size": search.context_size})
    if search.location is not None:
        tool["user_location"] = {**search.location.set_fields(), "type": "approximate"}
    return tool


def _tool_choice(requested: ToolChoice) -> str | FreeObject:
    match requested.choice:
        case ToolMode() as mode:
            return mode.value
        case NamedFunction(name=name):
            return {"type": "function", "name": name}
        case AllowedFunctions(names=names, mode=mode):
            tools = [{"type": "function", "name": name} for name in names]
            return {"type": "allowed_tools", "mode": mode.value, "tools": tools}
        case OtherChoice(written=written):
            custom = custom_member(written)
            if custom is not None and isinstance(custom.get("name"), str):
                return {"type": "custom", "name": custom["name"]}
    raise OptionUnsupported(
        "For this model, tool_choice can name only functions and custom tools.",
        param=requested.param,
    )
