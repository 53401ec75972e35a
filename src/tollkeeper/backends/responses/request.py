"""A call as a Responses request. What the protocol has no place for is refused by its name."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tollkeeper.backends.options import place_options
from tollkeeper.backends.responses.input import Input
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import (
    AllowedFunctions,
    FreeObject,
    FunctionTool,
    NamedFunction,
    Option,
    Prompt,
    SchemaOutput,
    Tool,
    ToolChoice,
    ToolMode,
    WebSearch,
)

# What a model can be asked at most when its backend speaks this protocol.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
# The option by which a caller asks for reasoning that goes back to the backend unread.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_INCLUDE = "include"
# Where options of our faces stand in it. A tier has a price: whoever offers one declares it.
OPTIONS: Mapping[str, str] = {
    "verbosity": "text.verbosity",
    "reasoning.summary": "reasoning.summary",
    "reasoning.generate_summary": "reasoning.summary",
    ENCRYPTED_REASONING: _INCLUDE,
    "max_tool_calls": "max_tool_calls",
}
_LOGPROBS = "message.output_text.logprobs"
_NOTHING: Mapping[str, Any] = {}
_encode = msgspec.json.Encoder().encode


def encode_responses_request(
    call: Call, *, stream: bool, extra: Mapping[str, Any] = _NOTHING
) -> bytes:
    """The body for the backend. Nothing of it may be kept there."""
    prompt = call.prompt
    _refuse_without_place(prompt)
    conversation = Input().add(prompt.turns)
    body: FreeObject = {}
    _add_optional(
        body,
        {
            "instructions": conversation.instructions,
            "temperature": prompt.sampling.temperature,
            "top_p": prompt.sampling.top_p,
            "metadata": prompt.identity.metadata,
            "user": prompt.identity.user,
            "safety_identifier": prompt.identity.safety_identifier,
            "prompt_cache_key": prompt.caching.key,
            "text": _text(prompt),
            "reasoning": _reasoning(prompt),
        },
    )
    body.update(_tool_fields(prompt))
    _add_includes(body, call)
    options = [option for option in prompt.options if not _is_include(option, call.model)]
    place_options(body, call.model, options)
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
    """The option is a member of a list, and its name is the member's."""
    return model.options[option.name] == _INCLUDE


def _add_optional(body: FreeObject, fields: Mapping[str, Any]) -> None:
    body.update((name, value) for name, value in fields.items() if value is not None)


def _refuse_without_place(prompt: Prompt) -> None:
    asked = [*prompt.sampling.given()]
    asked += [modality.param for modality in prompt.output_modalities if modality.name != "text"]
    if prompt.speech is not None:
        asked.append("audio")
    if prompt.caching.salt is not None:
        asked.append("cache_salt")
    for name in asked:
        if name not in SAMPLING_PARAMETERS:
            raise OptionUnsupported(f"The backend's protocol has no {name}.", param=name)


def _text(prompt: Prompt) -> FreeObject | None:
    wanted = prompt.output_format
    if wanted is None:
        return None
    if not isinstance(wanted, SchemaOutput):
        return {"format": wanted.described()}
    described: FreeObject = {"type": "json_schema", "name": wanted.name, "schema": wanted.schema}
    _add_optional(described, {"description": wanted.description, "strict": wanted.strict})
    return {"format": described}


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
        # A legacy answer can hold one call.
        fields["parallel_tool_calls"] = False
    elif prompt.parallel_tool_calls is not None and prompt.tools:
        fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    return fields


def _tool(tool: Tool) -> FreeObject:
    if not isinstance(tool, FunctionTool):
        place = "functions" if tool.legacy else tool.place
        raise OptionUnsupported("Only functions are supported here.", param=place)
    described: FreeObject = {
        "type": "function",
        "name": tool.name,
        "parameters": tool.parameters,
        # Unsaid strictness means no in chat and yes here, so it is said.
        "strict": tool.strict or False,
        **(tool.extra or {}),
    }
    _add_optional(described, {"description": tool.description})
    return described


def _search_tool(search: WebSearch) -> FreeObject:
    if search.extra:
        raise InvalidRequest(f"{search.param} is not as the protocol has it.", param=search.param)
    tool: FreeObject = {"type": "web_search"}
    _add_optional(tool, {"search_context_size": search.context_size})
    if search.location is not None:
        tool["user_location"] = {**search.location.given(), "type": "approximate"}
    return tool


def _tool_choice(wanted: ToolChoice) -> str | FreeObject:
    match wanted.choice:
        case ToolMode() as mode:
            return mode.value
        case NamedFunction(name=name):
            return {"type": "function", "name": name}
        case AllowedFunctions(names=names, mode=mode):
            tools = [{"type": "function", "name": name} for name in names]
            return {"type": "allowed_tools", "mode": mode.value, "tools": tools}
    raise OptionUnsupported("Only functions can be chosen here.", param=wanted.param)


def narrowed(declared: Iterable[str], possible: frozenset[str]) -> tuple[str, ...]:
    """What is declared and possible, in the order of the declaration."""
    return tuple(name for name in declared if name in possible)
