"""Reads the tools of a Responses request and applies its `tool_choice`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tollkeeper.core.conventions import PUBLISHED_TOOLS, WEB_SEARCH_TOOLS
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import (
    FreeObject,
    FunctionTool,
    NamedFunction,
    ToolChoice,
    ToolMode,
    UserLocation,
    WebSearch,
)
from tollkeeper.faces.calls import tool_missing
from tollkeeper.faces.responses.namespaces import QualifiedName, flat_name
from tollkeeper.faces.strict_json import convert_within, decode_within
from tollkeeper.faces.wire import responses as wire

_head = msgspec.json.Decoder(wire.ToolHead)
_namespace = msgspec.json.Decoder(wire.NamespaceTool)
_function = msgspec.json.Decoder(wire.FunctionTool)
_web_search = msgspec.json.Decoder(wire.WebSearchTool)
_CHOICE = "tool_choice"
_TOOL_TYPES = ("function", "namespace", *sorted(WEB_SEARCH_TOOLS))
_TYPES_IN_NAMESPACES = ("function",)


@dataclass(slots=True)
class Tools:
    # Both by the names that the model sees.
    functions: dict[str, FunctionTool] = field(default_factory=dict)
    # Only for functions of namespace tools.
    flat_names: dict[str, QualifiedName] = field(default_factory=dict)
    web_search: WebSearch | None = None
    # A search without the live web, which is dropped.
    offline_search_place: str | None = None
    # What the result shows the client.
    shown: list[FreeObject] = field(default_factory=list)

    @property
    def has_any(self) -> bool:
        return bool(self.functions) or self.web_search is not None


@dataclass(frozen=True, slots=True)
class ChosenTools:
    functions: tuple[FunctionTool, ...] = ()
    web_search: WebSearch | None = None
    choice: ToolChoice | None = None


def read_tools(raw_tools: Sequence[msgspec.Raw]) -> Tools:
    tools = Tools()
    for at, tool in enumerate(raw_tools):
        place = f"tools[{at}]"
        head = decode_within(tool, _head, place)
        if head.type == "function":
            function = decode_within(tool, _function, place)
            tools.shown.append(_add_function(tools, function, place))
        elif head.type == "namespace":
            _add_namespace(tools, decode_within(tool, _namespace, place), place)
        elif head.type in WEB_SEARCH_TOOLS:
            _add_web_search(tools, decode_within(tool, _web_search, place), place)
        else:
            raise _unsupported_tool(head, place, _TOOL_TYPES)
    return tools


def _unsupported_tool(
    head: wire.ToolHead, place: str, allowed: Sequence[str]
) -> InvalidRequest | OptionUnsupported:
    if head.type is None:
        return InvalidRequest(f"A tool needs a type: {', '.join(allowed)}.", param=f"{place}.type")
    quoted_name = f" {head.name[:100]!r}" if isinstance(head.name, str) else ""
    supported = f"Supported types are {', '.join(allowed)}."
    if head.type in PUBLISHED_TOOLS or head.type in _TOOL_TYPES:
        return OptionUnsupported(
            f"The tool{quoted_name} of type {head.type} is not supported here. {supported}",
            param=place,
        )
    return InvalidRequest(
        f"The tool{quoted_name} has the unknown type {head.type[:100]!r}. {supported}",
        param=f"{place}.type",
    )


def choose_tools(tools: Tools, body: wire.ResponsesRequest) -> ChosenTools:
    """Without tools, "none" and "auto" have no effect, and any other choice is rejected."""
    choice = body.tool_choice
    if not tools.has_any:
        if choice not in (None, "none", "auto"):
            if tools.offline_search_place is not None:
                raise _offline_search_unsupported(tools.offline_search_place)
            raise tool_missing(_CHOICE)
        return ChosenTools()
    functions = tuple(tools.functions.values())
    if choice is None:
        return ChosenTools(functions, tools.web_search)
    if isinstance(choice, str):
        mode = ToolMode(choice)
        # Backends apply a mode only to functions, so a search that mustn't be chosen isn't sent.
        web_search = None if mode is ToolMode.NONE else tools.web_search
        return ChosenTools(functions, web_search, _choice_with_mode(functions, mode))
    named = convert_within(choice, wire.NamedTool, _CHOICE)
    if named.type == "allowed_tools":
        return _allowed(tools, convert_within(choice, wire.AllowedTools, _CHOICE))
    if named.type == "function":
        forced_function = NamedFunction(_known_function(tools, named, _CHOICE))
        return ChosenTools(functions, tools.web_search, ToolChoice(forced_function, _CHOICE))
    _require_search(tools, named, _CHOICE)
    return ChosenTools(web_search=tools.web_search, choice=ToolChoice(ToolMode.REQUIRED, _CHOICE))


def _choice_with_mode(functions: tuple[FunctionTool, ...], mode: ToolMode) -> ToolChoice | None:
    """Without functions, only a mode that requires a tool has an effect."""
    return ToolChoice(mode, _CHOICE) if functions or mode is ToolMode.REQUIRED else None


def shown_choice(choice: str | FreeObject | None) -> str | FreeObject:
    """As the result shows it, with defaults for omitted fields."""
    if choice is None:
        return "auto"
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {"mode": wire.ALLOWED_TOOLS_MODE, **choice}
    return choice


def _allowed(tools: Tools, allowed: wire.AllowedTools) -> ChosenTools:
    functions: dict[str, FunctionTool] = {}
    namespaces: dict[str | None, dict[str, FunctionTool]] = {}
    for flat, qualified in tools.flat_names.items():
        namespaces.setdefault(qualified.namespace, {})[flat] = tools.functions[flat]
    web_search = None
    for at, named in enumerate(allowed.tools):
        place = f"tool_choice.tools[{at}]"
        if named.type == "function":
            name = _known_function(tools, named, place)
            functions[name] = tools.functions[name]
        elif named.type == "namespace":
            if named.name not in namespaces:
                raise InvalidRequest("No namespace in tools has this name.", param=f"{place}.name")
            functions.update(namespaces[named.name])
            # It names the namespace again, so there's nothing to add.
            namespaces[named.name] = {}
        else:
            _require_search(tools, named, place)
            web_search = tools.web_search
    allowed_functions = tuple(functions.values())
    chosen = _choice_with_mode(allowed_functions, ToolMode(allowed.mode))
    return ChosenTools(allowed_functions, web_search, chosen)


def _known_function(tools: Tools, named: wire.NamedTool, place: str) -> str:
    name = named.name
    if name is not None and named.namespace is not None:
        name = flat_name(named.namespace, name)
    if name is None or name not in tools.functions:
        raise InvalidRequest("No function in tools has this name.", param=f"{place}.name")
    return name


def _require_search(tools: Tools, named: wire.NamedTool, place: str) -> None:
    if named.type not in WEB_SEARCH_TOOLS:
        raise OptionUnsupported(
            f"A choice of type {named.type[:100]!r} is not supported.", param=place
        )
    if tools.web_search is None:
        if tools.offline_search_place is not None:
            raise _offline_search_unsupported(tools.offline_search_place)
        raise InvalidRequest("tools contains no web search.", param=place)


def _offline_search_unsupported(place: str) -> OptionUnsupported:
    return OptionUnsupported(
        "A web search without access to the live web is not supported.",
        param=f"{place}.external_web_access",
    )


def _add_namespace(tools: Tools, namespace: wire.NamespaceTool, place: str) -> None:
    shown = []
    for at, tool in enumerate(namespace.tools):
        inner_place = f"{place}.tools[{at}]"
        head = decode_within(tool, _head, inner_place)
        if head.type != "function":
            raise _unsupported_tool(head, inner_place, _TYPES_IN_NAMESPACES)
        function = decode_within(tool, _function, inner_place)
        shown.append(_add_function(tools, function, inner_place, namespace))
    tools.shown.append(
        {
            "type": "namespace",
            "name": namespace.name,
            "description": namespace.description or "",
            "tools": shown,
        }
    )


def _add_function(
    tools: Tools, tool: wire.FunctionTool, place: str, namespace: wire.NamespaceTool | None = None
) -> FreeObject:
    name = tool.name if namespace is None else flat_name(namespace.name, tool.name)
    if name in tools.functions:
        raise InvalidRequest("Two functions have the same name.", param=f"{place}.name")
    unsupported = {
        "async": tool.async_,
        "defer_loading": tool.defer_loading,
        "output_schema": tool.output_schema,
        "allowed_callers": tool.allowed_callers if tool.allowed_callers != ["direct"] else None,
    }
    _refuse_unsupported(unsupported, place)
    function_fields: FreeObject = {
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    shown = {"type": "function", "name": tool.name, **function_fields}
    if namespace is not None:
        tools.flat_names[name] = QualifiedName(tool.name, namespace.name)
        # The model sees no namespaces, so each function's description includes theirs.
        descriptions = filter(None, (namespace.description, tool.description))
        function_fields["description"] = "\n\n".join(descriptions) or None
    tools.functions[name] = FunctionTool(
        name=name, place=place, schema_place=f"{place}.parameters", **function_fields
    )
    return shown


def _add_web_search(tools: Tools, tool: wire.WebSearchTool, place: str) -> None:
    if tools.web_search is not None or tools.offline_search_place is not None:
        raise InvalidRequest("tools may contain only one web search.", param=place)
    if tool.external_web_access is False:
        # Such a search may only find pages that the provider has stored, and no backend stores any.
        # It's dropped rather than rejected, because Codex CLI sends one with every request.
        tools.offline_search_place = place
        return
    _refuse_unsupported(
        {
            "filters": tool.filters,
            "search_content_types": tool.search_content_types,
        },
        place,
    )
    user = tool.user_location
    location = None
    if user is not None:
        location = UserLocation(user.city, user.country, user.region, user.timezone)
    tools.web_search = WebSearch(place, tool.search_context_size, location)
    shown = msgspec.to_builtins(tool)
    tools.shown.append({name: value for name, value in shown.items() if value is not None})


def _refuse_unsupported(fields: Mapping[str, object], place: str) -> None:
    """A prompt can't represent them, and ignoring them would change the request's meaning."""
    for name, value in fields.items():
        if value:
            raise OptionUnsupported(f"{name} is not supported.", param=f"{place}.{name}")
