"""Encodes a call as a Responses request. Rejects calls that the protocol can't represent."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
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
from tollkeeper.providers.request_fields import (
    ENCRYPTED_REASONING,
    add_options,
    check_extra,
    present,
    refuse_search_fields,
    refuse_unsupported,
)
from tollkeeper.providers.responses.input import Input, custom_member

SAMPLING_PARAMETERS = frozenset({"temperature", "top_p"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
_INCLUDE = "include"
# The default mapping of client options to fields. Not `service_tier`: each tier has its own price,
# so an operator has to declare it for a model.
OPTIONS: Mapping[str, str] = {
    "verbosity": "text.verbosity",
    "reasoning.summary": "reasoning.summary",
    "reasoning.generate_summary": "reasoning.summary",
    ENCRYPTED_REASONING: _INCLUDE,
    "max_tool_calls": "max_tool_calls",
}
_LOGPROBS = "message.output_text.logprobs"


def responses_request(
    call: Call, *, stream: bool, extra: Mapping[str, Any], takes_reasoning_text: bool = True
) -> FreeObject:
    """Always asks not to store the answer. `takes_reasoning_text`: sends reasoning that the backend
    hasn't encrypted."""
    prompt, salt_field = call.prompt, call.model.cache_salt_field
    refuse_unsupported(
        prompt,
        sampling=SAMPLING_PARAMETERS,
        output_modalities=OUTPUT_MODALITIES,
        json_output=True,
        logprobs=True,
        salts=bool(salt_field),
    )
    conversation = Input(takes_reasoning_text=takes_reasoning_text)
    conversation.add(prompt.turns)
    effort = None if prompt.reasoning is None else prompt.reasoning.effort
    included = [option.name for option in prompt.options if _is_include(option, call.model)]
    if prompt.logprobs is not None:
        included.insert(0, _LOGPROBS)
    body = present(
        {
            "instructions": conversation.instructions,
            "temperature": prompt.sampling.temperature,
            "top_p": prompt.sampling.top_p,
            "metadata": prompt.identity.metadata,
            "user": prompt.identity.short_user,
            "safety_identifier": prompt.identity.safety_identifier,
            "prompt_cache_key": prompt.caching.key,
            "text": _text(prompt),
            "reasoning": None if effort is None else {"effort": effort},
            **_tool_fields(prompt),
            "top_logprobs": None if prompt.logprobs is None else prompt.logprobs.top,
            "include": included or None,
        }
    )
    options = [option for option in prompt.options if not _is_include(option, call.model)]
    add_options(body, call.model, options)
    if prompt.caching.salt is not None:
        body[salt_field] = prompt.caching.salt
    body.update(extra)
    body["model"] = call.model.upstream_model
    body["input"] = conversation.items
    body["max_output_tokens"] = call.output_tokens_max
    body["stream"] = stream
    body["store"] = False
    return body


def _is_include(option: Option, model: Model) -> bool:
    """In the `include` list."""
    return model.options[option.name] == _INCLUDE


def _text(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if output is None:
        return None
    if not isinstance(output, SchemaOutput):
        return {"format": output.described()}
    schema = {
        "type": "json_schema",
        "name": output.name,
        "schema": output.schema,
        "description": output.description,
        "strict": output.strict,
    }
    return {"format": present(schema)}


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
        # The legacy form (`function_call`) can contain only one call.
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
    return {
        "type": "function",
        "name": tool.name,
        "parameters": tool.parameters,
        # Always sent, because the default is false in chat but true here.
        "strict": tool.strict or False,
        **(tool.extra or {}),
        **present({"description": tool.description}),
    }


def _custom_tool(custom: FreeObject) -> FreeObject:
    """Without chat's objects `custom` and, for the grammar, `grammar`."""
    definition = {**custom, "type": "custom"}
    input_format = custom.get("format")
    if isinstance(input_format, dict) and isinstance(input_format.get("grammar"), dict):
        definition["format"] = {**input_format["grammar"], "type": "grammar"}
    return definition


def _search_tool(search: WebSearch) -> FreeObject:
    refuse_search_fields(search)
    location = search.location
    tool = {
        "type": "web_search",
        "search_context_size": search.context_size,
        "user_location": location and {**location.set_fields(), "type": "approximate"},
    }
    return present(tool)


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
