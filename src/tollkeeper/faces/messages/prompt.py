"""Turns a Messages request into a prompt. A token count's only has what can change the count."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tollkeeper.calls.reasoning_seal import ENCRYPTED_REASONING
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.conventions import MESSAGES_TOOL_FAMILIES
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import (
    CachingWish,
    FreeObject,
    FunctionTool,
    Identity,
    NamedFunction,
    Option,
    Prompt,
    ReasoningWish,
    Sampling,
    SchemaOutput,
    ToolChoice,
    ToolMode,
    UserLocation,
    WebSearch,
)
from tollkeeper.faces.calls import tool_missing
from tollkeeper.faces.messages.input import MessagesConversation, Unseal
from tollkeeper.faces.strict_json import decode_within
from tollkeeper.faces.wire import messages as wire

_VERSION_LENGTH = len("_20250124")
_WEB_SEARCH = "web_search"
_SUMMARIZED = "summarized"
# The protocol's, for requests without one.
_DEFAULT_TEMPERATURE = 1

_tool_type = msgspec.json.Decoder(wire.ToolHead)
_custom_tool = msgspec.json.Decoder(wire.CustomTool)
_search_tool = msgspec.json.Decoder(wire.SearchTool)
_server_tool = msgspec.json.Decoder(FreeObject)


def read_counted_prompt(
    body: wire.TokenCountRequest, model: Model, server_tool_types: frozenset[str], unseal: Unseal
) -> Prompt:
    conversation = MessagesConversation(model, unseal, for_token_count=True)
    tools = _tools(body.tools or (), server_tool_types, conversation)
    supports_schemas = Feature.STRUCTURED_OUTPUTS in model.supported_features
    thinking = body.thinking
    options: tuple[Option, ...] = ()
    if thinking is not None and "thinking" in model.options:
        options = (Option("thinking", not isinstance(thinking, wire.ThinkingDisabled), "thinking"),)
    return replace(
        _prompt(body, conversation, tools),
        server_tools=tuple(tools.server_tools.values()),
        output_format=_output_format(body) if supports_schemas else None,
        options=options,
    )


def read_prompt(
    body: wire.MessagesRequest,
    model: Model,
    server_tool_types: frozenset[str],
    unseal: Unseal,
    caching: CachingWish,
) -> Prompt:
    conversation = MessagesConversation(model, unseal, for_token_count=False)
    tools = _tools(body.tools or (), server_tool_types, conversation)
    search = _web_search(tools)
    choice = body.tool_choice
    if isinstance(choice, wire.ToolChoice):
        _require_tool(choice.name, tools, search)
    prompt = _prompt(body, conversation, tools)
    if not prompt.turns:
        raise InvalidRequest("The messages have no content.", param="messages")
    is_parallel_off = choice is not None and choice.disable_parallel_tool_use is True
    return replace(
        prompt,
        tool_choice=prompt.tool_choice or _forced_search(body, search),
        parallel_tool_calls=False if is_parallel_off and tools.functions else None,
        # Backends apply a choice only to functions, so a search that mustn't be chosen isn't sent.
        web_search=None if isinstance(choice, wire.NoChoice) else search,
        reads_search_blocks=model.messages.has_search_blocks,
        output_format=_output_format(body),
        sampling=_sampling(body, model),
        reasoning=_reasoning(body, model),
        caching=caching,
        identity=Identity(user=None if body.metadata is None else body.metadata.user_id),
        options=tuple(_options(body, model)),
    )


class _Tools(NamedTuple):
    functions: list[FunctionTool]
    # Run by the model's provider, by their places.
    server_tools: dict[str, FreeObject]


def _prompt(
    body: wire.TokenCountRequest, conversation: MessagesConversation, tools: _Tools
) -> Prompt:
    """What calls and token counts have in common."""
    if body.system is not None:
        conversation.instruct(body.system)
    for at, message in enumerate(body.messages):
        conversation.add(message, f"messages[{at}]")
    if body.cache_control is not None:
        conversation.mark_last_part(body.cache_control)
    return Prompt(
        turns=tuple(conversation.turns),
        tools=tuple(tools.functions),
        tool_choice=_tool_choice(body) if tools.functions else None,
    )


def _tools(
    raw_tools: Sequence[msgspec.Raw],
    server_tool_types: frozenset[str],
    conversation: MessagesConversation,
) -> _Tools:
    tools = _Tools([], {})
    for at, tool in enumerate(raw_tools):
        place = f"tools[{at}]"
        head = decode_within(tool, _tool_type, place)
        kind = head.type
        if kind in (None, "custom"):
            custom = decode_within(tool, _custom_tool, place)
            tools.functions.append(
                FunctionTool(
                    name=custom.name,
                    description=custom.description,
                    parameters=custom.input_schema,
                    strict=custom.strict or None,
                    place=place,
                    schema_place=f"{place}.input_schema",
                    tool_extra=conversation.mark_properties(custom.cache_control),
                )
            )
        elif kind in server_tool_types:
            tools.server_tools[place] = decode_within(tool, _server_tool, place)
        else:
            raise _unsupported_tool(head, place, server_tool_types)
    return tools


def _unsupported_tool(
    head: wire.ToolHead, place: str, server_tool_types: frozenset[str]
) -> InvalidRequest | OptionUnsupported:
    kind = head.type or ""
    quoted_name = f" {head.name[:100]!r}" if isinstance(head.name, str) else ""
    supported = f"Supported types are {', '.join(['custom', *sorted(server_tool_types)])}."
    if _is_published(kind):
        return OptionUnsupported(
            f"The tool{quoted_name} of type {kind} is not supported. {supported}", param=place
        )
    return InvalidRequest(
        f"The tool{quoted_name} has the unknown type {kind[:100]!r}. {supported}",
        param=f"{place}.type",
    )


def _is_published(kind: str) -> bool:
    """By Anthropic. A type is a tool family, usually followed by a version's date."""
    family, version = kind[:-_VERSION_LENGTH], kind[-_VERSION_LENGTH:]
    has_version = version[:1] == "_" and version[1:].isdecimal()
    return (family if has_version else kind) in MESSAGES_TOOL_FAMILIES


def _tool_choice(body: wire.TokenCountRequest) -> ToolChoice | None:
    choice: ToolMode | NamedFunction
    match body.tool_choice:
        case wire.AnyChoice():
            choice = ToolMode.REQUIRED
        case wire.NoChoice():
            choice = ToolMode.NONE
        case wire.ToolChoice(name=name):
            choice = NamedFunction(name)
        case _:
            return None
    return ToolChoice(choice, "tool_choice")


def _require_tool(name: str, tools: _Tools, search: WebSearch | None) -> None:
    """If it's the web search, only that is left, as in Responses."""
    if name in [tool.name for tool in tools.functions]:
        return
    if search is None or name != _WEB_SEARCH:
        raise InvalidRequest("No tool has this name.", param="tool_choice.name")
    tools.functions.clear()


def _forced_search(body: wire.MessagesRequest, search: WebSearch | None) -> ToolChoice | None:
    """For a request without functions that requires a search, otherwise None. If it names the
    search, a wire may drop the choice: Claude Code sends that, and most protocols can't force a
    search."""
    choice = body.tool_choice
    if not isinstance(choice, wire.AnyChoice | wire.ToolChoice):
        return None
    if search is None:
        raise tool_missing("tool_choice")
    is_named = isinstance(choice, wire.ToolChoice)
    return ToolChoice(ToolMode.REQUIRED, "tool_choice", may_be_dropped=is_named)


def _web_search(tools: _Tools) -> WebSearch | None:
    """Rejects a second search, and the provider's other tools, which not every protocol has."""
    search: WebSearch | None = None
    for place, tool_object in tools.server_tools.items():
        kind = str(tool_object["type"])
        if not kind.startswith(_WEB_SEARCH) or search is not None:
            raise OptionUnsupported(f"A tool of type {kind} is not supported here.", param=place)
        tool = decode_within(msgspec.Raw(msgspec.json.encode(tool_object)), _search_tool, place)
        for name in ("allowed_domains", "blocked_domains"):
            if getattr(tool, name):
                raise OptionUnsupported(
                    "A web search cannot be limited to some domains.", param=f"{place}.{name}"
                )
        location = None
        if tool.user_location is not None:
            location = UserLocation(**msgspec.structs.asdict(tool.user_location))
        search = WebSearch(place, location=location, uses_max=tool.max_uses)
    return search


def _output_format(body: wire.TokenCountRequest) -> SchemaOutput | None:
    output_format = None if body.output_config is None else body.output_config.format
    if output_format is None:
        return None
    return SchemaOutput(
        name="output",
        schema=output_format.schema,
        param="output_config.format",
        schema_place="output_config.format.schema",
    )


def _sampling(body: wire.MessagesRequest, model: Model) -> Sampling:
    """Rejects stop sequences that the model lacks, but of temperatures ignores the default."""
    supported = model.supported_sampling_parameters
    if body.stop_sequences and "stop" not in supported:
        raise OptionUnsupported(
            f"The model {model.id} does not support stop_sequences.", param="stop_sequences"
        )
    temperature = body.temperature
    if temperature == _DEFAULT_TEMPERATURE and "temperature" not in supported:
        temperature = None
    return Sampling(temperature=temperature, top_p=body.top_p, stop=body.stop_sequences or None)


def _reasoning(body: wire.MessagesRequest, model: Model) -> ReasoningWish | None:
    """Clients send an effort to every model, so one that can't reason ignores it."""
    effort = None if body.output_config is None else body.output_config.effort
    if effort is None or Feature.REASONING not in model.supported_features:
        return None
    return ReasoningWish(("output_config.effort",), effort, asks_by_effort=False)


def _options(body: wire.MessagesRequest, model: Model) -> Iterator[Option]:
    if Feature.REASONING in model.supported_features:
        yield from _thinking_options(body, model)
    if body.top_k is not None:
        yield Option("top_k", body.top_k, "top_k")
    if body.speed == "fast":
        yield Option("speed", body.speed, "speed")
    if body.service_tier is not None and "service_tier" in model.options:
        yield Option("service_tier", body.service_tier, "service_tier")


def _thinking_options(body: wire.MessagesRequest, model: Model) -> Iterator[Option]:
    """Only those that the model supports."""
    thinking, options = body.thinking, model.options
    is_off = isinstance(thinking, wire.ThinkingDisabled)
    if isinstance(thinking, wire.ThinkingEnabled) and "reasoning.max_tokens" in options:
        yield Option("reasoning.max_tokens", thinking.budget_tokens, "thinking.budget_tokens")
    elif thinking is not None:
        switch = next((name for name in ("thinking", "reasoning.enabled") if name in options), None)
        if switch is not None:
            yield Option(switch, not is_off, "thinking")
    if is_off:
        return
    if thinking is not None and thinking.display == _SUMMARIZED and "reasoning.summary" in options:
        yield Option("reasoning.summary", "auto", "thinking.display")
    if ENCRYPTED_REASONING in options:
        yield Option(ENCRYPTED_REASONING, True, "thinking")
