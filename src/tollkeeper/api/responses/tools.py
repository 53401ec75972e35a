"""Reads the tools of a Responses request and applies the request's `tool_choice`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tollkeeper.api.http.strict_json import convert_within, decode_within
from tollkeeper.api.wire import responses as wire
from tollkeeper.domain.conventions import PUBLISHED_TOOLS, WEB_SEARCH_TOOLS
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    FreeObject,
    FunctionTool,
    NamedFunction,
    ToolChoice,
    ToolMode,
    UserLocation,
    WebSearch,
)

_typed = msgspec.json.Decoder(wire.Typed)
_function = msgspec.json.Decoder(wire.FunctionTool)
_web_search = msgspec.json.Decoder(wire.WebSearchTool)
_CHOICE = "tool_choice"


@dataclass(slots=True)
class Tools:
    """The tools of a request. `shown` is how the result repeats them."""

    functions: dict[str, FunctionTool] = field(default_factory=dict)
    web_search: WebSearch | None = None
    shown: list[FreeObject] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.functions) or self.web_search is not None


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """The tools that the model gets after `tool_choice` is applied."""

    functions: tuple[FunctionTool, ...] = ()
    web_search: WebSearch | None = None
    choice: ToolChoice | None = None


def read_tools(raw_tools: Sequence[msgspec.Raw]) -> Tools:
    tools = Tools()
    for at, tool in enumerate(raw_tools):
        place = f"tools[{at}]"
        kind = decode_within(tool, _typed, place).type
        if kind == "function":
            _add_function(tools, decode_within(tool, _function, place), place)
        elif kind in WEB_SEARCH_TOOLS:
            _add_web_search(tools, decode_within(tool, _web_search, place), place)
        elif kind is None:
            raise InvalidRequest("A tool needs a type.", param=f"{place}.type")
        elif kind in PUBLISHED_TOOLS:
            raise OptionUnsupported(f"Tools of type {kind} are not supported.", param=place)
        else:
            raise InvalidRequest(f"There is no tool of type {kind[:100]!r}.", param=f"{place}.type")
    return tools


def choose_tools(tools: Tools, body: wire.ResponsesRequest) -> ChosenTools:
    """Without tools, "none" and "auto" have no effect; any other choice needs a tool."""
    choice = body.tool_choice
    if not tools.any:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(
                "tool_choice needs a tool, but the request has no tools.", param=_CHOICE
            )
        return ChosenTools()
    functions = tuple(tools.functions.values())
    if choice is None:
        return ChosenTools(functions, tools.web_search)
    if isinstance(choice, str):
        mode = _mode_for(functions, ToolMode(choice))
        return ChosenTools(functions, tools.web_search, mode)
    named = convert_within(choice, wire.NamedTool, _CHOICE)
    if named.type == "allowed_tools":
        return _allowed(tools, convert_within(choice, wire.AllowedTools, _CHOICE))
    if named.type == "function":
        forced = NamedFunction(_known_function(tools, named, _CHOICE))
        return ChosenTools(functions, tools.web_search, ToolChoice(forced, _CHOICE))
    _require_search(tools, named, _CHOICE)
    # The chat protocol cannot force a web search, so the search becomes the only tool.
    return ChosenTools(web_search=tools.web_search)


def _mode_for(functions: tuple[FunctionTool, ...], mode: ToolMode) -> ToolChoice | None:
    """A mode applies to functions only: without functions there is no choice."""
    return ToolChoice(mode, _CHOICE) if functions else None


def shown_choice(choice: str | FreeObject | None) -> str | FreeObject:
    """The choice as the result repeats it, with the defaults of omitted fields."""
    if choice is None:
        return "auto"
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {"mode": wire.ALLOWED_TOOLS_MODE, **choice}
    return choice


def _allowed(tools: Tools, allowed: wire.AllowedTools) -> ChosenTools:
    functions = {}
    web_search = None
    for at, named in enumerate(allowed.tools):
        place = f"tool_choice.tools[{at}]"
        if named.type == "function":
            name = _known_function(tools, named, place)
            functions[name] = tools.functions[name]
        else:
            _require_search(tools, named, place)
            web_search = tools.web_search
    allowed_functions = tuple(functions.values())
    mode = _mode_for(allowed_functions, ToolMode(allowed.mode))
    return ChosenTools(allowed_functions, web_search, mode)


def _known_function(tools: Tools, named: wire.NamedTool, place: str) -> str:
    if named.name is None or named.name not in tools.functions:
        raise InvalidRequest("No function in tools has this name.", param=f"{place}.name")
    return named.name


def _require_search(tools: Tools, named: wire.NamedTool, place: str) -> None:
    if named.type not in WEB_SEARCH_TOOLS:
        raise OptionUnsupported(
            f"A choice of type {named.type[:100]!r} is not supported.", param=place
        )
    if tools.web_search is None:
        raise InvalidRequest("tools contains no web search.", param=place)


def _add_function(tools: Tools, tool: wire.FunctionTool, place: str) -> None:
    if tool.name in tools.functions:
        raise InvalidRequest("Two functions have the same name.", param=f"{place}.name")
    unsupported = {
        "async": tool.async_,
        "defer_loading": tool.defer_loading,
        "output_schema": tool.output_schema,
        "allowed_callers": tool.allowed_callers if tool.allowed_callers != ["direct"] else None,
    }
    _refuse_unsupported(unsupported, place)
    described: FreeObject = {
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    tools.functions[tool.name] = FunctionTool(
        name=tool.name, place=place, schema_place=f"{place}.parameters", **described
    )
    tools.shown.append({"type": "function", "name": tool.name, **described})


def _add_web_search(tools: Tools, tool: wire.WebSearchTool, place: str) -> None:
    if tools.web_search is not None:
        raise InvalidRequest("tools may contain one web search only.", param=place)
    _refuse_unsupported(
        {
            "filters": tool.filters,
            "external_web_access": tool.external_web_access is False,
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
    """Refuses fields that a prompt cannot represent, because ignoring one would change what the
    caller asked for."""
    for name, value in fields.items():
        if value:
            raise OptionUnsupported(f"{name} is not supported.", param=f"{place}.{name}")
