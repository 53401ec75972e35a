"""Turns a chat request into a prompt. It keeps the client's bytes for backends with a chat API."""

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Literal

import msgspec
from msgspec.structs import replace

from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.prompt import (
    AllowedFunctions,
    CachingWish,
    FreeObject,
    FunctionTool,
    Identity,
    JsonOutput,
    Logprobs,
    NamedFunction,
    Option,
    OtherChoice,
    OtherTool,
    OutputFormat,
    OutputModality,
    Prompt,
    ReasoningWish,
    Sampling,
    SchemaOutput,
    Tool,
    ToolChoice,
    ToolMode,
    UserLocation,
    WebSearch,
)
from tollkeeper.faces.calls import tool_missing
from tollkeeper.faces.chat.messages import (
    has_client_fields,
    has_untyped_parts,
    read_turns,
    with_part_types,
    without_client_fields,
)
from tollkeeper.faces.wire import chat as wire

# A backend with a chat API gets these as the client wrote them.
_WRITTEN_FIELDS = frozenset(
    {
        *("messages", "user", "safety_identifier", "metadata"),
        *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "stop", "response_format", "web_search_options", "modalities"),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    }
)
_LISTS_OF_TOOLS = frozenset({"tools", "functions"})
# Without effect if the request has no tools.
_FIELDS_OF_TOOLS = frozenset({"tool_choice", "parallel_tool_calls", "function_call"})
# A prompt of only these, as in nearly every request, has turns, sampling, identity and caching.
_PLAIN_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "max_completion_tokens", "n"),
        *("stream", "stream_options", "store", "policy_ids"),
        *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "stop", "user", "safety_identifier", "metadata"),
        *("prompt_cache_key", "cache_salt"),
    }
)
_FURTHER_FIELDS = frozenset(wire.ChatRequest.__struct_fields__) - _PLAIN_FIELDS
# A prompt of only these, and messages that are only texts, just has turns and caching.
_FIELDS_OF_TEXTS = (_PLAIN_FIELDS - _WRITTEN_FIELDS) | {"messages"}
# Each combination that `check_combinations` rejects has one of these.
_CHECKED_FIELDS = frozenset(
    {
        *("store", "max_completion_tokens", "stream_options", "top_logprobs", "prompt_logprobs"),
        "reasoning",
    }
)
_SCHEMA_PLACE = "response_format.json_schema.schema"
_TEXT_ONLY = ["text"]
_NULL = msgspec.Raw(b"null")
_EMPTY_REASONING = wire.Reasoning()
# Ask for no reasoning, or for not seeing it.
_NO_REASONING: dict[str, tuple[object, ...]] = {
    "include_reasoning": (False,),
    "reasoning_effort": ("none",),
    "reasoning.effort": ("none",),
    "reasoning.enabled": (False,),
    "reasoning.exclude": (True, False),
    "thinking": (False,),
}

_sampling_fields = attrgetter(*Sampling.__struct_fields__)
_identity_fields = attrgetter(*Identity.__struct_fields__)


def check_combinations(body: wire.ChatRequest, fields: Collection[str]) -> None:
    """Also rejects fields without another one that they need."""
    if _CHECKED_FIELDS.isdisjoint(fields):
        return
    if body.store:
        raise InvalidRequest(
            "The gateway does not store completions: store must be false.", param="store"
        )
    if body.max_completion_tokens is not None and body.max_tokens is not None:
        raise InvalidRequest(
            "Send exactly one of max_tokens and max_completion_tokens.", param="max_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    if body.reasoning is not None:
        effort, flat_effort = body.reasoning.effort, body.reasoning_effort
        if effort is not None and flat_effort is not None and effort != flat_effort:
            raise InvalidRequest(
                "reasoning.effort and reasoning_effort differ: send one of them.",
                param="reasoning_effort",
            )
        if body.reasoning.max_tokens is not None and (effort or flat_effort) is not None:
            raise InvalidRequest(
                "Send an effort or reasoning.max_tokens, not both.", param="reasoning.max_tokens"
            )


def hides_reasoning(body: wire.ChatRequest) -> bool:
    return body.include_reasoning is False or (
        body.reasoning is not None and body.reasoning.exclude is True
    )


def read_prompt(
    body: wire.ChatRequest,
    fields: dict[str, msgspec.Raw],
    model: Model,
    caching: CachingWish,
) -> Prompt:
    """Omits what has no effect on `model`, such as `thinking: false` if it can't reason."""
    turns, texts = read_turns(body.messages, fields["messages"])
    if texts is not None and _FIELDS_OF_TEXTS.issuperset(fields):
        written = {"messages": fields["messages"]}
        return Prompt(turns=turns, texts=texts, caching=caching, written=written)
    # Null has no effect.
    fields = {name: value for name, value in fields.items() if value != _NULL}
    written = {name: value for name, value in fields.items() if name in _WRITTEN_FIELDS}
    if texts is None:
        written["messages"] = _corrected(written["messages"], body.messages)
    prompt = Prompt(
        turns=turns,
        texts=texts,
        sampling=Sampling(*_sampling_fields(body)),
        caching=caching,
        identity=Identity(*_identity_fields(body)),
        written=written,
    )
    if _FURTHER_FIELDS.isdisjoint(fields):
        return prompt
    tools, ineffective = _tools(body), _ineffective_fields(body)
    return replace(
        prompt,
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        parallel_tool_calls=body.parallel_tool_calls,
        web_search=_web_search(body.web_search_options),
        output_format=_output_format(body.response_format),
        output_modalities=tuple(_output_modalities(body)),
        logprobs=Logprobs("logprobs", body.top_logprobs) if body.logprobs else None,
        reasoning=_reasoning(body, model),
        options=tuple(_options(body, model)),
        written={name: value for name, value in written.items() if name not in ineffective},
    )


def _ineffective_fields(body: wire.ChatRequest) -> set[str]:
    """Without tools, their fields have no effect either."""
    ineffective = {name for name in _LISTS_OF_TOOLS if not getattr(body, name)}
    if ineffective == _LISTS_OF_TOOLS:
        ineffective |= _FIELDS_OF_TOOLS
    if isinstance(body.response_format, wire.TextFormat):
        ineffective.add("response_format")
    if body.modalities == _TEXT_ONLY:
        ineffective.add("modalities")
    return ineffective


def _corrected(raw_messages: msgspec.Raw, messages: list[wire.ChatMessage]) -> msgspec.Raw:
    if any(map(has_client_fields, messages)):
        raw_messages = without_client_fields(raw_messages)
    if any(map(has_untyped_parts, messages)):
        raw_messages = with_part_types(raw_messages)
    return raw_messages


def _tools(body: wire.ChatRequest) -> tuple[Tool, ...]:
    if not body.tools and not body.functions:
        return ()
    tools = [
        _tool(tool, tool.get("function"), f"tools[{at}]", "function.")
        for at, tool in enumerate(body.tools or ())
    ]
    tools += [
        _tool(function, function, f"functions[{at}]", "", legacy=True)
        for at, function in enumerate(body.functions or ())
    ]
    return tuple(tools)


def _tool(
    tool: FreeObject, function: object, place: str, path: str, *, legacy: bool = False
) -> Tool:
    """The interface accepts any object. One that isn't a function as OpenAI defines it becomes an
    `OtherTool`, unchanged. `path` leads from the tool to the function, with a dot at its end. It's
    empty if the tool is the function."""
    try:
        typed = msgspec.convert(function, _Function)
    except msgspec.ValidationError:
        return OtherTool(tool, place, legacy)
    assert isinstance(function, dict)
    if not legacy and tool.get("type") not in (None, "function"):
        return OtherTool(tool, place)
    extra = {name: value for name, value in function.items() if name not in _FUNCTION_FIELDS}
    tool_extra = {name: value for name, value in tool.items() if name not in _TOOL_FIELDS}
    return FunctionTool(
        name=typed.name,
        description=typed.description,
        parameters=typed.parameters,
        strict=typed.strict,
        place=place,
        schema_place=f"{place}.{path}parameters",
        legacy=legacy,
        extra=extra or None,
        tool_extra=None if legacy else tool_extra or None,
    )


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None


_FUNCTION_FIELDS = frozenset(_Function.__struct_fields__)
_TOOL_FIELDS = frozenset({"type", "function"})


def _tool_choice(body: wire.ChatRequest, *, has_tools: bool) -> ToolChoice | None:
    choice: ToolChoice | None = None
    choice_objects: tuple[FreeObject, ...] = ()
    for param, requested in (
        ("tool_choice", body.tool_choice),
        ("function_call", body.function_call),
    ):
        if requested is None:
            continue
        if not has_tools:
            if requested not in ("none", "auto"):
                raise tool_missing(param)
            continue
        if isinstance(requested, dict):
            choice_objects += (requested,)
        choice = ToolChoice(_choice(requested), param, choice_objects)
    return choice


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    function: _Named | None = None


class _AllowedTools(msgspec.Struct):
    mode: ToolMode
    tools: list[_Choice]


class _Allowed(msgspec.Struct):
    allowed_tools: _AllowedTools


def _choice(
    requested: str | FreeObject,
) -> ToolMode | NamedFunction | AllowedFunctions | OtherChoice:
    if isinstance(requested, str):
        return ToolMode(requested)
    try:
        if "allowed_tools" in requested:
            allowed = msgspec.convert(requested, _Allowed).allowed_tools
            names = [_function_name(tool) for tool in allowed.tools]
            if None not in names:
                return AllowedFunctions(tuple(filter(None, names)), allowed.mode)
        name = _function_name(msgspec.convert(requested, _Choice))
    except msgspec.ValidationError:
        name = None
    return OtherChoice(requested) if name is None else NamedFunction(name)


def _function_name(choice: _Choice) -> str | None:
    if choice.type not in (None, "function"):
        return None
    return choice.name if choice.function is None else choice.function.name


class _ApproximateLocation(msgspec.Struct, forbid_unknown_fields=True):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class _Location(msgspec.Struct, forbid_unknown_fields=True):
    approximate: _ApproximateLocation
    type: Literal["approximate"] | None = None


def _web_search(requested: FreeObject | None) -> WebSearch | None:
    if requested is None:
        return None
    extra = dict(requested)
    size = extra.get("search_context_size")
    if isinstance(size, str):
        del extra["search_context_size"]
    location = None
    if "user_location" in extra:
        try:
            area = msgspec.convert(extra["user_location"], _Location).approximate
        except msgspec.ValidationError:
            pass
        else:
            location = UserLocation(area.city, area.country, area.region, area.timezone)
            del extra["user_location"]
    return WebSearch(
        "web_search_options", size if isinstance(size, str) else None, location, extra or None
    )


def _output_format(
    requested: wire.TextFormat | wire.JsonObjectFormat | wire.JsonSchemaFormat | None,
) -> OutputFormat | None:
    match requested:
        case wire.JsonObjectFormat():
            return JsonOutput("response_format")
        case wire.JsonSchemaFormat(json_schema=json_schema):
            return SchemaOutput(
                name=json_schema.name,
                schema=json_schema.schema,
                param="response_format",
                schema_place=_SCHEMA_PLACE,
                description=json_schema.description,
                strict=json_schema.strict,
            )
    return None


def _output_modalities(body: wire.ChatRequest) -> Iterator[OutputModality]:
    for position, modality in enumerate(body.modalities or ()):
        yield OutputModality(modality, f"modalities[{position}]")
    if body.audio is not None:
        yield OutputModality("audio", "audio")


def _reasoning(body: wire.ChatRequest, model: Model) -> ReasoningWish | None:
    nested = body.reasoning or _EMPTY_REASONING
    requested: dict[str, object] = {
        "include_reasoning": body.include_reasoning,
        "reasoning_effort": body.reasoning_effort,
        "reasoning.enabled": nested.enabled,
        "reasoning.effort": nested.effort,
        "reasoning.max_tokens": nested.max_tokens,
        "reasoning.exclude": nested.exclude,
    }
    asked = [name for name, value in requested.items() if _has_effect(name, value, model)]
    if not asked:
        return None
    params = dict.fromkeys(name.partition(".")[0] for name in asked)
    return ReasoningWish(tuple(params), body.reasoning_effort or nested.effort)


def _has_effect(name: str, value: object, model: Model) -> bool:
    """Clients that can't know whether a model reasons turn reasoning off to be sure, and a model
    without it does just that."""
    if value is None:
        return False
    return Feature.REASONING in model.supported_features or value not in _NO_REASONING.get(name, ())


def _options(body: wire.ChatRequest, model: Model) -> Iterator[Option]:
    """What the model's `options` must name. Defaults are omitted, because they have no effect, and
    so is `structuredOutputs` if the model needs no such option."""
    reasoning = body.reasoning or _EMPTY_REASONING
    structured = body.structuredOutputs is True and (
        Feature.STRUCTURED_OUTPUTS not in model.supported_features
        or "structuredOutputs" in model.options
    )
    requested: Mapping[str, object] = {
        "reasoning.enabled": reasoning.enabled,
        "reasoning.max_tokens": reasoning.max_tokens,
        "thinking": body.thinking,
        "prompt_logprobs": body.prompt_logprobs,
        "prediction": body.prediction,
        "verbosity": body.verbosity,
        "service_tier": None if body.service_tier in ("auto", "default") else body.service_tier,
        "prompt_cache_retention": body.prompt_cache_retention
        if body.prompt_cache_retention == "24h"
        else None,
        "structuredOutputs": True if structured else None,
    }
    for name, value in requested.items():
        if _has_effect(name, value, model) or (value is not None and name in model.options):
            yield Option(name, value, name)
