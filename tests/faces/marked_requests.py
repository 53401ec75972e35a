"""Creates requests with a marker in one place, for every place in the wire types of a face.

`msgspec.inspect` lists the places of the structs. The content of free-form values, such as the parts of a
message, is listed here by the names in the faces' own tables.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from tollkeeper.faces.chat.messages import _CONTENT_PROPERTIES
from tollkeeper.faces.messages.input import _SERVER_BLOCKS
from tollkeeper.faces.wire import chat, messages, responses

MARKER = "Zq7marker"
NUMBER = 867530942
FRACTION = 867530942.5
MARKERS = (MARKER, str(NUMBER))

# Text that careless code could treat as a file, because of its field name and length.
_LONG = f"{MARKER} " * 60
_LONG_WORD = f"{MARKER}-" * 60

FREE_OBJECTS: tuple[dict[str, Any], ...] = (
    {MARKER: 1},
    {MARKER: None},
    {"a": MARKER},
    {"a": NUMBER},
    {"a": FRACTION},
    {"a": [MARKER]},
    {"a": {MARKER: True}},
    {"a": [{"b": [[{"c": MARKER}]]}]},
    {"a": [{MARKER: None}]},
    {"data": _LONG},
    {"url": _LONG_WORD},
    {"arguments": {MARKER: 1}},
    {"arguments": f'{{"\\u005a{MARKER[1:]}": 1}}'},
)
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {MARKER: {"type": "string"}}},
    {"type": "object", "properties": {"a": {"enum": [MARKER]}}},
    {"type": "object", "properties": {"a": {"const": NUMBER}}},
    {"type": "object", "properties": {"a": {"description": MARKER}}},
)
_FUNCTIONS: tuple[dict[str, Any], ...] = (
    {"name": MARKER},
    {"name": "f", "description": MARKER},
    {"name": "f", "other": {MARKER: 1}},
    *({"name": "f", "parameters": schema} for schema in _SCHEMAS),
)
_CALLS: tuple[dict[str, Any], ...] = (
    {"name": MARKER, "arguments": "{}"},
    {"name": "f", "arguments": f'{{"a": "{MARKER}"}}'},
    {"name": "f", "arguments": {MARKER: 1}},
    {"name": "f", "arguments": {"a": NUMBER}},
)
# Published forms of the values that the structs define as free objects, by the name of the field.
_SHAPES: dict[str, tuple[Any, ...]] = {
    "ChatMessage.tool_calls": (
        *({"id": "c", "type": "function", "function": call} for call in _CALLS),
        {"id": MARKER, "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ),
    "ChatMessage.function_call": _CALLS,
    "ChatRequest.tools": (
        *({"type": "function", "function": function} for function in _FUNCTIONS),
        {"type": "function", "function": {"name": "f"}, "other": MARKER},
    ),
    "ChatRequest.functions": _FUNCTIONS,
    "ChatRequest.tool_choice": (
        {"type": "function", "function": {"name": MARKER}},
        {"type": "function", "function": {"name": "f", MARKER: 1}},
        {"type": "function", "function": {"name": "f"}, "other": MARKER},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": MARKER}}],
            },
        },
    ),
    "ChatRequest.function_call": ({"name": MARKER}, {"name": "f", "other": MARKER}),
    "ChatRequest.web_search_options": (
        {"search_context_size": MARKER},
        {"user_location": {"type": "approximate", "approximate": {"city": MARKER}}},
        {"user_location": {"type": MARKER, "approximate": {"city": "Bern"}}},
    ),
    "ChatRequest.prediction": ({"type": "content", "content": MARKER},),
    "ResponsesRequest.tool_choice": (
        {"type": "function", "name": MARKER},
        {"type": "function", "name": "f", "other": MARKER},
        {"type": MARKER},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": MARKER}]},
    ),
}
# The content of a raw value: a struct, and further fields of its JSON.
InPlace = tuple[type[msgspec.Struct], dict[str, Any]]
_ITEMS: tuple[InPlace, ...] = (
    (responses.InputMessage, {"type": "message"}),
    (responses.InputMessage, {}),
    (responses.EchoedFunctionCall, {"type": "function_call"}),
    (responses.FunctionCallOutput, {"type": "function_call_output"}),
    (responses.EchoedReasoning, {"type": "reasoning"}),
    (responses.ItemType, {"type": "item_reference"}),
)
_BLOCKS: tuple[InPlace, ...] = (
    (messages.TextBlock, {"type": "text"}),
    (messages.ThinkingBlock, {"type": "thinking"}),
    (messages.RedactedThinkingBlock, {"type": "redacted_thinking"}),
    (messages.ToolUseBlock, {"type": "tool_use"}),
    (messages.ToolResultBlock, {"type": "tool_result"}),
    (messages.SearchResultBlock, {"type": "search_result"}),
    (messages.ImageBlock, {"type": "image"}),
    (messages.DocumentBlock, {"type": "document"}),
    *((messages.Block, {"type": kind}) for kind in sorted(_SERVER_BLOCKS)),
    (messages.ServerToolUseBlock, {"type": "server_tool_use", "name": "web_search"}),
    (messages.SearchResultsBlock, {"type": "web_search_tool_result"}),
)
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_TOOLS: tuple[InPlace, ...] = (
    (messages.CustomTool, {}),
    (messages.ToolHead, _SEARCH),
    (messages.SearchTool, _SEARCH),
)
_FUNCTION = {"type": "function", "name": "g", "parameters": {"type": "object"}}
RAW: dict[str, tuple[InPlace, ...]] = {
    "ResponsesRequest.input": _ITEMS,
    "ResponsesRequest.tools": (
        (responses.FunctionTool, {}),
        (responses.WebSearchTool, {"type": "web_search"}),
        (responses.NamespaceTool, {"type": "namespace", "tools": [_FUNCTION]}),
    ),
    "NamespaceTool.tools": ((responses.FunctionTool, {"type": "function"}),),
    "MessagesMessage.content": _BLOCKS,
    "ToolResultBlock.content": _BLOCKS[:1] + _BLOCKS[5:8],
    "ContentSource.content": _BLOCKS[:1] + _BLOCKS[6:7],
    "MessagesRequest.tools": _TOOLS,
    "TokenCountRequest.tools": _TOOLS,
}
# Structs that `Places` does not walk: those of `tool_choice`, which a Responses request has as a
# free object, and the struct whose fields select the struct of a tool.
_NOT_WALKED = {responses.NamedTool, responses.AllowedTools, responses.ToolHead}


# Types whose values cannot contain a marker.
_WORDLESS = (
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
)


# Structs that add a property to another struct, and that struct.
_EXTENDED: dict[type, type] = {
    chat.ReplayingChatRequest: chat.ChatRequest,
    chat.ReplayedMessage: chat.ChatMessage,
}


class Places:
    """Walks the structs of a request and yields places, each with a body that has a marker there."""

    def __init__(self, request: type[msgspec.Struct]) -> None:
        self._request = request
        self.visited: set[type] = set(_NOT_WALKED)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._struct(self._request, "", {})

    def _struct(
        self, struct: type[msgspec.Struct], path: str, more: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        named = _EXTENDED.get(struct, struct)
        self.visited |= {struct, named}
        info = inspect.type_info(struct)
        assert isinstance(info, inspect.StructType)
        required = {**plain_struct(info), **more}
        for field in info.fields:
            owner = f"{named.__name__}.{field.encode_name}"
            place = f"{path}.{field.encode_name}".lstrip(".")
            for deeper, value in self._value(field.type, place, owner):
                yield deeper, {**required, field.encode_name: value}
        if not info.forbid_unknown_fields and struct is not chat.ContentPart:
            yield f"{path}.*", {**required, MARKER: 1}
            yield f"{path}.*", {**required, "other": MARKER}

    def _value(self, info: inspect.Type, path: str, owner: str) -> Iterator[tuple[str, Any]]:
        if owner == "ChatMessage.content" and isinstance(info, inspect.StructType):
            yield from _content_parts(path)
            self.visited.add(chat.ContentPart)
            return
        match info:
            case inspect.StrType():
                yield path, MARKER[: info.max_length]
            case inspect.AnyType():
                yield path, MARKER
                yield path, {"a": MARKER}
            case inspect.StructType():
                yield from self._struct(info.cls, path, {})
            case inspect.RawType():
                for struct, more in RAW[owner]:
                    kind = more.get("type", struct.__name__)
                    yield from self._struct(struct, f"{path}<{kind}>", more)
            case inspect.Metadata(type=inner):
                yield from self._value(inner, path, owner)
            case inspect.UnionType(types=types):
                for member in types:
                    yield from self._value(member, path, owner)
            case inspect.ListType() | inspect.DictType():
                yield from self._container(info, path, owner)
            case _:
                assert isinstance(info, _WORDLESS), f"{owner} has an unknown type: {info}"

    def _container(
        self, info: inspect.ListType | inspect.DictType, path: str, owner: str
    ) -> Iterator[tuple[str, Any]]:
        match info:
            case inspect.ListType(item_type=inner):
                for deeper, value in self._value(inner, f"{path}[]", owner):
                    yield deeper, [value]
            case inspect.DictType(value_type=inspect.AnyType()):
                for found in (*FREE_OBJECTS, *_SHAPES.get(owner, ())):
                    yield path, found
            case inspect.DictType(key_type=key, value_type=inner):
                yield f"{path}.*", {MARKER: plain(inner)}
                for deeper, value in self._value(inner, f"{path}.*", owner):
                    yield deeper, {plain(key): value}


def _content_parts(path: str) -> Iterator[tuple[str, Any]]:
    """Yields parts of every type that the chat face knows, of an unknown type and without a type."""
    for kind, member in (*_CONTENT_PROPERTIES.items(), (MARKER, "text"), (None, "text")):
        place = f"{path}<{kind if kind != MARKER else 'unknown'}>"
        for content in (
            *(MARKER, _LONG, _LONG_WORD, [{"text": MARKER}], [{"text": "x", MARKER: 1}]),
            *FREE_OBJECTS,
            *({"url": "https://example.org/", **found} for found in FREE_OBJECTS),
            *({"url": url} for url in (MARKER, _LONG, _LONG_WORD, f"data:text/plain,{MARKER}")),
            {"url": "https://example.org/", "detail": MARKER},
            *({"data": data, "format": "wav"} for data in (MARKER, _LONG, _LONG_WORD)),
            {"data": "QUJD", "format": MARKER},
            *({"file_data": data} for data in (MARKER, _LONG, _LONG_WORD)),
            *({"file_data": "QUJD", **found} for found in FREE_OBJECTS),
            {"file_data": "QUJD", "filename": MARKER},
            {"file_id": MARKER},
        ):
            yield f"{place}.{member}", {"type": kind, member: content}
        example: Any = {"url": "https://example.org/", "data": "QUJD", "file_data": "QUJD"}
        if member in ("text", "refusal", "thinking"):
            example = "x"
        for found in FREE_OBJECTS:
            yield f"{place}.*", {"type": kind, member: example, **found}


def plain_struct(info: inspect.StructType) -> dict[str, Any]:
    """Returns the smallest JSON object that the struct accepts."""
    found = {field.encode_name: plain(field.type) for field in info.fields if field.required}
    return found if info.tag is None else {str(info.tag_field): info.tag, **found}


def plain(info: inspect.Type) -> Any:
    match info:
        case inspect.Metadata(type=inner):
            return plain(inner)
        case inspect.UnionType(types=types):
            return plain(types[0])
        case inspect.StrType():
            return "x"
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.IntType(ge=least):
            return least or 1
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return False
        case inspect.DictType():
            return {}
        case inspect.ListType(item_type=inner, min_length=least):
            return [plain(inner)] * (least or 0)
        case inspect.StructType():
            return plain_struct(info)
        case inspect.RawType():
            return {"type": "text", "text": "x"}
    return None
