"""Turns a Messages-shaped request into a prompt for token counting.

The prompt has only the fields that can change the number of input tokens. Fields that affect only
the answer are ignored.
"""

from collections.abc import Iterator, Sequence

import msgspec

from tollkeeper.api.http.strict_json import decode_within
from tollkeeper.api.messages.input import MessagesConversation
from tollkeeper.api.wire import messages as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.conventions import MESSAGES_TOOL_FAMILIES
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    FreeObject,
    FunctionTool,
    NamedFunction,
    Option,
    Prompt,
    SchemaOutput,
    ToolChoice,
    ToolMode,
)

_VERSION_LENGTH = len("_20250124")

_tool_head = msgspec.json.Decoder(wire.ToolHead)
_custom_tool = msgspec.json.Decoder(wire.CustomTool)


def read_prompt(
    body: wire.TokenCountRequest, model: Model, server_tool_types: frozenset[str]
) -> Prompt:
    conversation = MessagesConversation(model)
    if body.system is not None:
        conversation.instruct(body.system)
    for at, message in enumerate(body.messages):
        conversation.add(message, f"messages[{at}]")
    functions, server_tools = _tools(body.tools or (), server_tool_types)
    return Prompt(
        turns=tuple(conversation.turns),
        tools=tuple(functions),
        server_tools=tuple(server_tools),
        tool_choice=_tool_choice(body) if functions else None,
        output_format=_output_format(body, model),
        options=tuple(_options(body, model)),
    )


def _tools(
    raw_tools: Sequence[msgspec.Raw], server_tool_types: frozenset[str]
) -> tuple[list[FunctionTool], list[FreeObject]]:
    """The functions, and the tools that the model's provider runs."""
    functions: list[FunctionTool] = []
    server_tools: list[FreeObject] = []
    for at, tool in enumerate(raw_tools):
        place = f"tools[{at}]"
        head = decode_within(tool, _tool_head, place)
        kind = head.type
        if kind in (None, "custom"):
            custom = decode_within(tool, _custom_tool, place)
            functions.append(
                FunctionTool(
                    name=custom.name,
                    description=custom.description,
                    parameters=custom.input_schema,
                    place=place,
                    schema_place=f"{place}.input_schema",
                )
            )
        elif kind in server_tool_types:
            server_tools.append(msgspec.json.decode(tool))
        else:
            raise _unsupported_tool(head, place, server_tool_types)
    return functions, server_tools


def _unsupported_tool(
    head: wire.ToolHead, place: str, server_tool_types: frozenset[str]
) -> InvalidRequest | OptionUnsupported:
    kind = head.type or ""
    called = f" {head.name[:100]!r}" if isinstance(head.name, str) else ""
    supported = f"Supported types are {', '.join(['custom', *sorted(server_tool_types)])}."
    if _is_published(kind):
        return OptionUnsupported(
            f"The tool{called} of type {kind} is not supported. {supported}", param=place
        )
    return InvalidRequest(
        f"The tool{called} has the unknown type {kind[:100]!r}. {supported}", param=f"{place}.type"
    )


def _is_published(kind: str) -> bool:
    """Whether a type is a published family of tools, usually followed by the date of a version."""
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


def _output_format(body: wire.TokenCountRequest, model: Model) -> SchemaOutput | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None or Feature.STRUCTURED_OUTPUTS not in model.supported_features:
        return None
    return SchemaOutput(
        name="output",
        schema=wanted.schema,
        param="output_config.format",
        schema_place="output_config.format.schema",
    )


def _options(body: wire.TokenCountRequest, model: Model) -> Iterator[Option]:
    if body.thinking is not None and "thinking" in model.options:
        yield Option("thinking", not isinstance(body.thinking, wire.ThinkingDisabled), "thinking")
