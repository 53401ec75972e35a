"""Contains functions that several wires (implementations of backend protocols) use to encode the
content of a prompt."""

from collections.abc import Iterator, Mapping

import msgspec

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    File,
    FreeObject,
    Reasoning,
    Role,
    ToolCall,
    ToolResult,
    Turn,
    decode_arguments,
)


def arguments_object(call: ToolCall) -> FreeObject:
    """Decodes the arguments of a tool call, which are a JSON text. Only the top level is decoded: the
    values stay JSON (`msgspec.Raw`). An empty text means no arguments. Raises InvalidRequest."""
    decoded = decode_arguments(call.arguments.strip() or "{}")
    if decoded is None:
        raise InvalidRequest(
            "The arguments of the call are not a JSON object, or are nested too deeply.",
            param=call.place,
        )
    return dict(decoded)


def sent_filename(file: File) -> str | None:
    """Returns the name to send with a file. If the client sends the content of a file without a name, the
    name is `document`, because OpenAI requires a name then."""
    return file.filename or ("document" if file.data else None)


def custom_member(item: FreeObject) -> FreeObject | None:
    """Returns the field `custom` of a tool, tool call or tool choice in a chat request. Returns None
    if the item does not have the type `custom`, or has fields other than these two."""
    custom = item.get("custom")
    if item.get("type") != "custom" or not isinstance(custom, dict) or len(item) != 2:
        return None
    return custom


def answered_call_id(result: ToolResult, turn: Turn, legacy_calls: Mapping[str, str]) -> str:
    """Returns the id of the tool call to which a result belongs. A legacy result has no id.
    `legacy_calls` contains the id of the last legacy call of each function. Raises InvalidRequest."""
    if turn.role is Role.FUNCTION:
        call_id = legacy_calls.get(result.name or "")
        if call_id is None:
            raise InvalidRequest(
                "No earlier function_call has the name in this output.", param=f"{turn.place}.name"
            )
        return call_id
    if not result.call_id:
        raise InvalidRequest(
            "The output of a tool call must name its call in tool_call_id.",
            param=f"{turn.place}.tool_call_id",
        )
    return result.call_id


def sealed_objects(reasoning: Reasoning) -> Iterator[FreeObject]:
    """Yields the sealed values of earlier reasoning that are JSON objects. A sealed value contains
    reasoning and its signature, so that a client can send them back. A value that is not a JSON
    object comes from a backend of another protocol, and is skipped."""
    for sealed in reasoning.sealed:
        try:
            block = msgspec.json.decode(sealed)
        except msgspec.DecodeError:
            continue
        if isinstance(block, dict):
            yield block


def unsupported_content(place: str) -> OptionUnsupported:
    return OptionUnsupported("The backend's protocol has no field for this content.", param=place)
