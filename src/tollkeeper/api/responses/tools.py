"""Tools of a Responses request in the words of chat: flat functions are nested, web search is an
option, and a choice among tools is made of those that are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tollkeeper.api.http.strict_json import convert_within, decode_within
from tollkeeper.api.wire import responses as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.conventions import WEB_SEARCH_TOOLS
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.services.calls.options import require_feature

_typed = msgspec.json.Decoder(wire.Typed)
_function = msgspec.json.Decoder(wire.FunctionTool)
_web_search = msgspec.json.Decoder(wire.WebSearchTool)


@dataclass(slots=True)
class Tools:
    """What a request offers, as chat wants it and as the result shows it again."""

    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    web_search: dict[str, Any] | None = None
    shown: list[dict[str, Any]] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.functions) or self.web_search is not None


def read_tools(found: Sequence[msgspec.Raw], model: Model) -> Tools:
    tools = Tools()
    for at, tool in enumerate(found):
        place = f"tools[{at}]"
        kind = decode_within(tool, _typed, place).type
        if kind == "function":
            require_feature(model, Feature.TOOLS, "tools")
            _add_function(tools, decode_within(tool, _function, place), place)
        elif kind in WEB_SEARCH_TOOLS:
            require_feature(model, Feature.WEB_SEARCH, place)
            _add_web_search(tools, decode_within(tool, _web_search, place), place)
        elif kind is None:
            raise InvalidRequest("A tool has a type.", param=f"{place}.type")
        else:
            raise OptionUnsupported(f"Tools of type {kind[:100]!r} are not supported.", param=place)
    return tools


def tool_fields(tools: Tools, body: wire.ResponsesRequest) -> dict[str, Any]:
    """The chat request's fields. Without tools a choice between them asks for nothing, unless it
    insists on one."""
    choice = body.tool_choice
    if not tools.any:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(
                "tool_choice names a tool, but there are none.", param="tool_choice"
            )
        return {}
    chosen = _chosen(tools, choice)
    fields: dict[str, Any] = {}
    if chosen.web_search is not None:
        fields["web_search_options"] = chosen.web_search
    if chosen.functions:
        fields["tools"] = list(chosen.functions.values())
        if chosen.choice is not None:
            fields["tool_choice"] = chosen.choice
        if body.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = body.parallel_tool_calls
    return fields


def shown_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    """The choice as the result shows it again: what a request may leave out is said."""
    if choice is None:
        return "auto"
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {"mode": wire.ALLOWED_TOOLS_MODE, **choice}
    return choice


@dataclass(frozen=True, slots=True)
class _Chosen:
    functions: dict[str, dict[str, Any]]
    web_search: dict[str, Any] | None
    choice: str | dict[str, Any] | None


def _chosen(tools: Tools, choice: str | dict[str, Any] | None) -> _Chosen:
    if choice is None or isinstance(choice, str):
        return _Chosen(tools.functions, tools.web_search, choice)
    named = convert_within(choice, wire.NamedTool, "tool_choice")
    if named.type == "allowed_tools":
        allowed = convert_within(choice, wire.AllowedTools, "tool_choice")
        return _allowed(tools, allowed)
    if named.type == "function":
        name = _known_function(tools, named, "tool_choice")
        forced = {"type": "function", "function": {"name": name}}
        return _Chosen(tools.functions, tools.web_search, forced)
    _require_search(tools, named, "tool_choice")
    # A search is no call that chat could force: nothing else is offered beside it.
    return _Chosen({}, tools.web_search, None)


def _allowed(tools: Tools, allowed: wire.AllowedTools) -> _Chosen:
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
    return _Chosen(functions, web_search, allowed.mode)


def _known_function(tools: Tools, named: wire.NamedTool, place: str) -> str:
    if named.name is None or named.name not in tools.functions:
        raise InvalidRequest("There is no such function among the tools.", param=f"{place}.name")
    return named.name


def _require_search(tools: Tools, named: wire.NamedTool, place: str) -> None:
    if named.type not in WEB_SEARCH_TOOLS:
        raise OptionUnsupported(
            f"A choice of type {named.type[:100]!r} is not supported.", param=place
        )
    if tools.web_search is None:
        raise InvalidRequest("There is no web search among the tools.", param=place)


def _add_function(tools: Tools, tool: wire.FunctionTool, place: str) -> None:
    if tool.name in tools.functions:
        raise InvalidRequest("Two functions have the same name.", param=f"{place}.name")
    later = {
        "async": tool.async_,
        "defer_loading": tool.defer_loading,
        "output_schema": tool.output_schema,
        "allowed_callers": tool.allowed_callers if tool.allowed_callers != ["direct"] else None,
    }
    _refuse_wishes(later, place)
    described = {
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    given = {name: value for name, value in described.items() if value is not None}
    tools.functions[tool.name] = {"type": "function", "function": {"name": tool.name, **given}}
    tools.shown.append({"type": "function", "name": tool.name, **described})


def _add_web_search(tools: Tools, tool: wire.WebSearchTool, place: str) -> None:
    if tools.web_search is not None:
        raise InvalidRequest("One web search is enough.", param=place)
    _refuse_wishes(
        {
            "filters": tool.filters,
            "external_web_access": tool.external_web_access is False,
            "search_content_types": tool.search_content_types,
        },
        place,
    )
    options: dict[str, Any] = {}
    if tool.search_context_size is not None:
        options["search_context_size"] = tool.search_context_size
    if tool.user_location is not None:
        place_of_user = msgspec.structs.asdict(tool.user_location)
        del place_of_user["type"]
        known = {name: value for name, value in place_of_user.items() if value is not None}
        options["user_location"] = {"type": "approximate", "approximate": known}
    tools.web_search = options
    shown = msgspec.to_builtins(tool)
    tools.shown.append({name: value for name, value in shown.items() if value is not None})


def _refuse_wishes(wishes: Mapping[str, object], place: str) -> None:
    """What chat has no word for: silently leaving it out would be another request."""
    for name, wish in wishes.items():
        if wish:
            raise OptionUnsupported(f"{name} is not supported.", param=f"{place}.{name}")
